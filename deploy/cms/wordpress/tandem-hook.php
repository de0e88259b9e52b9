<?php
/**
 * Plugin Name: Tandem hook
 * Description: Asks Tandem for what a post does not have yet, its text or its featured image: when it is published, or when somebody asks in the list of posts.
 * Version: 1.0.0
 * Requires at least: 6.1
 * Requires PHP: 7.4
 *
 * In wp-config.php:
 *     define( 'TANDEM_HOOK_URL', 'https://tandem.example/hooks/blog' );
 *     define( 'TANDEM_HOOK_SECRET', 'whsec_...' );
 *
 * The request is made by an action that runs later (Action Scheduler if it is there, else WP-Cron), so that a receiver
 * that hangs costs no editor anything. It is signed when it is sent (Standard Webhooks), and sent again with growing
 * pauses until it is taken; the next try is on the schedule before a try begins, so that one that dies is made up for.
 * What asks for the same is one job at Tandem, however often it arrives. There is no page of settings: the secret stands
 * in no database, and what is wrong with the constants is told to whoever may mend it. Deactivated, it sends nothing
 * more; deleted, it leaves nothing behind.
 *
 * Filters: tandem_hook_post_types (names of the types that count), tandem_hook_own_write (whether a save is the
 * write-back of a result; by default every save with an application password), tandem_hook_want (what is asked for),
 * tandem_hook_body (what is sent).
 */

defined( 'ABSPATH' ) || exit;

/** How long to wait after the first failed try, the second ..., in seconds. Afterwards it is given up. */
const TANDEM_HOOK_PAUSES = array( 60, 300, 1800, 7200, 21600, 43200, 86400 );

/** Answers after which the same request has no hope. */
const TANDEM_HOOK_HOPELESS = array( 400, 410, 413, 422 );

/** Where a post's meta says how the last request went. */
const TANDEM_HOOK_META = '_tandem_hook';

add_action( 'wp_after_insert_post', 'tandem_hook_saved', 10, 4 );
add_action( 'tandem_hook_send', 'tandem_hook_send', 10, 5 );
add_action( 'admin_post_tandem_hook_ask', 'tandem_hook_button' );
add_action( 'post_submitbox_misc_actions', 'tandem_hook_submitbox' );
add_action( 'admin_notices', 'tandem_hook_notice' );
add_filter( 'post_row_actions', 'tandem_hook_row', 10, 2 );
add_filter( 'page_row_actions', 'tandem_hook_row', 10, 2 );
register_activation_hook( __FILE__, 'tandem_hook_activated' );
register_deactivation_hook( __FILE__, 'tandem_hook_deactivated' );

/** Have what it keeps removed when it is deleted. */
function tandem_hook_activated() {
	register_uninstall_hook( __FILE__, 'tandem_hook_uninstalled' );
}

/** Send nothing more. */
function tandem_hook_deactivated() {
	wp_unschedule_hook( 'tandem_hook_send' );
	if ( function_exists( 'as_unschedule_all_actions' ) ) {
		as_unschedule_all_actions( 'tandem_hook_send' );
	}
}

/** Leave nothing behind: the settings are in wp-config.php, the rest is how each post's last request went. */
function tandem_hook_uninstalled() {
	delete_post_meta_by_key( TANDEM_HOOK_META );
}

/** Ask when a post becomes public: also a scheduled one, in cron. Terms and featured image are stored by then. */
function tandem_hook_saved( $post_id, $post, $update, $before ) {
	if ( ( defined( 'DOING_AUTOSAVE' ) && DOING_AUTOSAVE ) || wp_is_post_revision( $post_id ) ) {
		return;
	}
	if ( 'publish' !== $post->post_status || ( $before && 'publish' === $before->post_status ) ) {
		return;
	}
	$own = function_exists( 'rest_get_authenticated_app_password' ) && rest_get_authenticated_app_password();
	if ( ! tandem_hook_counts( $post ) || apply_filters( 'tandem_hook_own_write', (bool) $own, $post ) ) {
		return;
	}
	tandem_hook_ask( $post, 'publish' );
}

/** Have it asked for what the post lacks; say whether it lacks anything. */
function tandem_hook_ask( $post, $cause ) {
	if ( ! tandem_hook_want( $post, $cause ) ) {
		return false;
	}
	$user = wp_get_current_user();
	tandem_hook_schedule( 0, array( $post->ID, $cause, (string) $user->user_login, 'msg_' . wp_generate_uuid4(), 1 ) );
	return true;
}

/** Send one try; the id is the same for every repeat. */
function tandem_hook_send( $post_id, $cause, $user, $id, $try ) {
	$post = get_post( $post_id );
	$want = $post && 'trash' !== $post->post_status ? tandem_hook_want( $post, $cause ) : array();
	if ( ! $want ) {
		return; // It is gone, or has by now what it lacked.
	}
	$next  = array( $post_id, $cause, $user, $id, $try + 1 );
	$pause = TANDEM_HOOK_PAUSES[ $try - 1 ] ?? null;
	if ( null !== $pause ) {
		tandem_hook_schedule( $pause, $next );
	}
	list( $status, $said, $asked_s ) = tandem_hook_post( $id, tandem_hook_body( $post, $cause, $user, $want ) );
	$taken = $status >= 200 && $status < 300;
	if ( $taken || in_array( $status, TANDEM_HOOK_HOPELESS, true ) ) {
		tandem_hook_unschedule( $next );
	} elseif ( null !== $pause && $asked_s > $pause ) {
		tandem_hook_unschedule( $next );
		tandem_hook_schedule( min( $asked_s, DAY_IN_SECONDS ), $next );
	}
	update_post_meta( $post->ID, TANDEM_HOOK_META, $taken ? 'asked' : wp_slash( "try $try: $said" ) );
}

/** Sign and post; return the status (0: no answer), what is to be said of it, and how long we were asked to wait. */
function tandem_hook_post( $id, $body ) {
	if ( '' !== tandem_hook_fault() ) {
		return array( 0, tandem_hook_fault(), 0 );
	}
	$now    = time();
	$key    = base64_decode( substr( TANDEM_HOOK_SECRET, strlen( 'whsec_' ) ) );
	$answer = wp_remote_post(
		TANDEM_HOOK_URL,
		array(
			'timeout'     => 10,
			'redirection' => 0, // A redirect would turn the POST into a GET.
			'headers'     => array(
				'Content-Type'      => 'application/json',
				'webhook-id'        => $id,
				'webhook-timestamp' => (string) $now,
				'webhook-signature' => 'v1,' . base64_encode( hash_hmac( 'sha256', "$id.$now.$body", $key, true ) ),
			),
			'body'        => $body,
		)
	);
	if ( is_wp_error( $answer ) ) {
		return array( 0, $answer->get_error_message(), 0 );
	}
	$status = (int) wp_remote_retrieve_response_code( $answer );
	$said   = $status . ' ' . mb_substr( sanitize_text_field( wp_remote_retrieve_body( $answer ) ), 0, 300 );
	return array( $status, $said, (int) wp_remote_retrieve_header( $answer, 'retry-after' ) );
}

/** What is asked for: only what the post does not have, so that nobody's text is ever replaced. */
function tandem_hook_want( $post, $cause ) {
	$want = array();
	if ( tandem_hook_empty( $post->post_content ) ) {
		$want[] = 'article';
	}
	if ( ! has_post_thumbnail( $post->ID ) ) {
		$want[] = 'hero_image';
	}
	return apply_filters( 'tandem_hook_want', $want, $post, $cause );
}

/** Whether a post holds nothing that anybody could miss: no text, no media, no block that makes its content itself. */
function tandem_hook_empty( $content ) {
	$more = '@<(?:img|video|audio|iframe|embed|object|svg|form)\b|<!--\s*wp:(?!(?:paragraph|heading)\b)@i';
	return '' === trim( html_entity_decode( wp_strip_all_tags( $content ), ENT_QUOTES, 'UTF-8' ), " \t\n\r\0\x0B\u{A0}" )
		&& ! preg_match( $more, $content );
}

/** The event, as it is now. */
function tandem_hook_body( $post, $cause, $user, $want ) {
	$data = array(
		'site'         => home_url(),
		'post_id'      => $post->ID,
		'post_type'    => $post->post_type,
		'status'       => $post->post_status,
		'cause'        => $cause,
		'want'         => array_values( $want ),
		'title'        => html_entity_decode( $post->post_title, ENT_QUOTES, 'UTF-8' ),
		'excerpt'      => html_entity_decode( $post->post_excerpt, ENT_QUOTES, 'UTF-8' ),
		'keywords'     => wp_get_post_tags( $post->ID, array( 'fields' => 'names' ) ),
		'language'     => get_locale(),
		'user'         => $user,
		'modified_gmt' => $post->post_modified_gmt,
	);
	$event = array(
		'type'      => 'content.requested',
		'timestamp' => gmdate( 'c' ),
		'data'      => $data,
	);
	return wp_json_encode( apply_filters( 'tandem_hook_body', $event, $post ) );
}

/** Put a try on the schedule. */
function tandem_hook_schedule( $in_s, $args ) {
	if ( ! function_exists( 'as_enqueue_async_action' ) ) {
		wp_schedule_single_event( time() + $in_s, 'tandem_hook_send', $args );
	} elseif ( 0 === $in_s ) {
		as_enqueue_async_action( 'tandem_hook_send', $args, 'tandem' );
	} else {
		as_schedule_single_action( time() + $in_s, 'tandem_hook_send', $args, 'tandem' );
	}
}

/** Take a try off the schedule. */
function tandem_hook_unschedule( $args ) {
	if ( function_exists( 'as_unschedule_action' ) ) {
		as_unschedule_action( 'tandem_hook_send', $args, 'tandem' );
	} else {
		wp_clear_scheduled_hook( 'tandem_hook_send', $args );
	}
}

/** What is wrong with the constants in wp-config.php; empty = nothing. */
function tandem_hook_fault() {
	if ( ! defined( 'TANDEM_HOOK_URL' ) || ! defined( 'TANDEM_HOOK_SECRET' ) ) {
		return 'TANDEM_HOOK_URL and TANDEM_HOOK_SECRET must be defined in wp-config.php.';
	}
	$key = 0 === strpos( TANDEM_HOOK_SECRET, 'whsec_' ) ? base64_decode( substr( TANDEM_HOOK_SECRET, 6 ), true ) : false;
	return false === $key || strlen( $key ) < 24 ? 'TANDEM_HOOK_SECRET must be whsec_ and the base64 of 24 bytes or more.' : '';
}

/** Whether a post is of a type that counts, and the plugin is set up. */
function tandem_hook_counts( $post ) {
	return '' === tandem_hook_fault()
		&& in_array( $post->post_type, apply_filters( 'tandem_hook_post_types', array( 'post' ) ), true );
}

/** The link that asks. */
function tandem_hook_link( $post ) {
	$url   = wp_nonce_url( admin_url( "admin-post.php?action=tandem_hook_ask&post={$post->ID}" ), "tandem_hook_ask_{$post->ID}" );
	$state = get_post_meta( $post->ID, TANDEM_HOOK_META, true );
	return sprintf( '<a href="%s" title="%s">Ask Tandem</a>', esc_url( $url ), esc_attr( $state ? "Last time: $state" : 'Not asked yet' ) );
}

/** The button in the list of posts. */
function tandem_hook_row( $actions, $post ) {
	if ( tandem_hook_counts( $post ) && 'trash' !== $post->post_status && current_user_can( 'edit_post', $post->ID ) ) {
		$actions['tandem_hook'] = tandem_hook_link( $post );
	}
	return $actions;
}

/** The button beside the classic editor; a box of our own would have the block editor save every post twice. */
function tandem_hook_submitbox( $post ) {
	if ( tandem_hook_counts( $post ) && 'auto-draft' !== $post->post_status && current_user_can( 'edit_post', $post->ID ) ) {
		echo '<div class="misc-pub-section">' . tandem_hook_link( $post ) . '</div>'; // phpcs:ignore -- escaped there
	}
}

/** The button was pressed. */
function tandem_hook_button() {
	$post_id = is_scalar( $_GET['post'] ?? 0 ) ? absint( $_GET['post'] ?? 0 ) : 0;
	check_admin_referer( "tandem_hook_ask_$post_id" );
	$post = get_post( $post_id );
	if ( ! $post || ! tandem_hook_counts( $post ) || ! current_user_can( 'edit_post', $post_id ) ) {
		wp_die( 'You may not ask for this post.', '', array( 'response' => 403 ) );
	}
	$asked = tandem_hook_ask( $post, 'button' );
	wp_safe_redirect( add_query_arg( 'tandem_hook', $asked ? 'asked' : 'nothing', wp_get_referer() ?: admin_url( 'edit.php' ) ) );
	exit;
}

/** What came of it. */
function tandem_hook_notice() {
	$said = array(
		'asked'   => 'Tandem is asked for what the post lacks.',
		'nothing' => 'The post has a text and a featured image: there is nothing to ask Tandem for.',
	);
	$key  = $_GET['tandem_hook'] ?? ''; // phpcs:ignore -- only chooses a sentence
	$key  = is_string( $key ) ? sanitize_key( $key ) : '';
	if ( '' !== tandem_hook_fault() && current_user_can( 'manage_options' ) ) {
		printf( '<div class="notice notice-error"><p>Tandem hook: %s</p></div>', esc_html( tandem_hook_fault() ) );
	}
	if ( isset( $said[ $key ] ) ) {
		printf( '<div class="notice notice-info is-dismissible"><p>%s</p></div>', esc_html( $said[ $key ] ) );
	}
}
