<?php
/**
 * As much of WordPress as the plugin uses, for one run of it under php-cli. Reads a script from stdin:
 * {"url", "secret", "scheduler": "action-scheduler" | "cron", "constants": {}, "steps": [...]}; writes what happened.
 * Posts, meta and schedule are kept in memory; requests are real.
 */

declare( strict_types = 1 );

set_error_handler(
	function ( $level, $message, $file, $line ) {
		throw new ErrorException( $message, 0, $level, $file, $line );
	}
);

const ABSPATH        = '/';
const DAY_IN_SECONDS = 86400;

final class Stage {
	public static array $script    = array();
	public static array $hooks     = array();
	public static array $posts     = array();
	public static array $meta      = array();
	public static array $thumbs    = array();
	public static array $queue     = array();
	public static array $sent      = array();
	public static string $user     = 'author1';
	public static bool $app        = false;
	public static bool $may        = true;
	public static bool $dies       = false;
	public static string $redirect = '';
	public static string $said     = '';
	public static array $want      = array();
}

final class Redirected extends Exception {}
final class Died extends Exception {}

final class WP_Error {
	private string $message;
	public function __construct( string $message ) {
		$this->message = $message;
	}
	public function get_error_message(): string {
		return $this->message;
	}
}

function add_filter( string $name, callable $call, int $priority = 10, int $count = 1 ): void {
	Stage::$hooks[ $name ][] = array( $call, $count );
}
function add_action( string $name, callable $call, int $priority = 10, int $count = 1 ): void {
	add_filter( $name, $call, $priority, $count );
}
function apply_filters( string $name, $value, ...$more ) {
	foreach ( Stage::$hooks[ $name ] ?? array() as list( $call, $count ) ) {
		$value = $call( ...array_slice( array( $value, ...$more ), 0, $count ) );
	}
	return $value;
}
function do_action( string $name, ...$args ): void {
	foreach ( Stage::$hooks[ $name ] ?? array() as list( $call, $count ) ) {
		$call( ...array_slice( $args, 0, $count ) );
	}
}

function register_activation_hook( string $file, callable $call ): void {
	add_action( 'activate', $call );
}
function register_deactivation_hook( string $file, callable $call ): void {
	add_action( 'deactivate', $call );
}
function register_uninstall_hook( string $file, string $call ): void {
	add_action( 'uninstall', $call );
}

function get_post( int $id ) {
	return Stage::$posts[ $id ] ?? null;
}
function wp_is_post_revision( int $id ) {
	return 'revision' === ( Stage::$posts[ $id ]->post_type ?? '' ) ? 1 : false;
}
function has_post_thumbnail( int $id ): bool {
	return in_array( $id, Stage::$thumbs, true );
}
function wp_get_post_tags( int $id, array $args ): array {
	return array( 'harbours' );
}
function update_post_meta( int $id, string $key, $value ): void {
	Stage::$meta[ $id ][ $key ] = stripslashes( $value );
}
function delete_post_meta_by_key( string $key ): void {
	foreach ( Stage::$meta as &$kept ) {
		unset( $kept[ $key ] );
	}
	Stage::$meta = array_filter( Stage::$meta );
}
function wp_slash( string $text ): string {
	return addslashes( $text );
}
function sanitize_text_field( string $text ): string {
	return 1 === preg_match( '//u', $text ) ? trim( preg_replace( '/[\r\n\t ]+/', ' ', wp_strip_all_tags( $text ) ) ) : '';
}
if ( ! function_exists( 'mb_substr' ) ) { // WordPress brings it too.
	function mb_substr( string $text, int $start, int $length ): string {
		return implode( '', array_slice( preg_split( '//u', $text, -1, PREG_SPLIT_NO_EMPTY ), $start, $length ) );
	}
}
function get_post_meta( int $id, string $key, bool $single ) {
	return Stage::$meta[ $id ][ $key ] ?? '';
}
function wp_get_current_user(): object {
	return (object) array( 'user_login' => Stage::$user );
}
function current_user_can( string $what, ?int $id = null ): bool {
	return Stage::$may;
}
function rest_get_authenticated_app_password() {
	return Stage::$app ? '7f3a' : null;
}
function wp_generate_uuid4(): string {
	return bin2hex( random_bytes( 16 ) );
}
function wp_strip_all_tags( string $text ): string {
	return strip_tags( preg_replace( '@<(script|style)[^>]*?>.*?</\\1>@si', '', $text ) );
}
function wp_json_encode( $value ) {
	return json_encode( $value );
}
function home_url(): string {
	return 'http://blog.example';
}
function admin_url( string $path ): string {
	return "http://blog.example/wp-admin/$path";
}
function get_locale(): string {
	return 'de_DE';
}
function absint( $value ): int {
	return abs( (int) $value );
}
function esc_url( string $text ): string {
	return htmlspecialchars( $text, ENT_QUOTES );
}
function esc_attr( string $text ): string {
	return htmlspecialchars( $text, ENT_QUOTES );
}
function esc_html( string $text ): string {
	return htmlspecialchars( $text, ENT_QUOTES );
}
function sanitize_key( string $text ): string {
	return preg_replace( '/[^a-z0-9_-]/', '', strtolower( $text ) );
}
function wp_nonce_url( string $url, string $action ): string {
	return "$url&_wpnonce=" . md5( $action );
}
function check_admin_referer( string $action ): void {
	if ( ( $_GET['_wpnonce'] ?? '' ) !== md5( $action ) ) {
		throw new Died( 'nonce' );
	}
}
function wp_get_referer() {
	return false;
}
function add_query_arg( string $name, string $value, string $url ): string {
	return "$url?$name=$value";
}
function wp_safe_redirect( string $url ): void {
	throw new Redirected( $url );
}
function wp_die( string $message, string $title, array $args ): void {
	throw new Died( (string) $args['response'] );
}

function is_wp_error( $value ): bool {
	return $value instanceof WP_Error;
}
function wp_remote_post( string $url, array $args ) {
	if ( Stage::$dies ) {
		throw new Died( 'out of memory' );
	}
	$headers = array( 'User-Agent: WordPress/7.1.4; http://blog.example', 'Accept: */*', 'Connection: close' );
	foreach ( $args['headers'] as $name => $value ) {
		$headers[] = "$name: $value";
	}
	$context = array(
		'method'           => 'POST',
		'header'           => $headers,
		'content'          => $args['body'],
		'timeout'          => $args['timeout'],
		'follow_location'  => $args['redirection'],
		'ignore_errors'    => true,
		'protocol_version' => 1.1,
	);
	try {
		$body = file_get_contents( $url, false, stream_context_create( array( 'http' => $context ) ) );
	} catch ( ErrorException $error ) {
		Stage::$sent[] = array( 'id' => $args['headers']['webhook-id'], 'status' => 0 );
		return new WP_Error( $error->getMessage() );
	}
	$found = array();
	foreach ( $http_response_header as $line ) {
		if ( preg_match( '@^HTTP/\S+ (\d+)@', $line, $match ) ) {
			$found['status'] = (int) $match[1];
		} else {
			list( $name, $value )                 = explode( ':', $line, 2 );
			$found['headers'][ strtolower( $name ) ] = trim( $value );
		}
	}
	Stage::$sent[] = array(
		'id'      => $args['headers']['webhook-id'],
		'status'  => $found['status'],
		'answer'  => json_decode( $body ),
		'headers' => $args['headers'],
		'body'    => $args['body'],
	);
	return $found + array( 'body' => $body );
}
function wp_remote_retrieve_response_code( array $answer ) {
	return $answer['status'];
}
function wp_remote_retrieve_body( array $answer ): string {
	return $answer['body'];
}
function wp_remote_retrieve_header( array $answer, string $name ): string {
	return $answer['headers'][ $name ] ?? '';
}

function stage_schedule( string $by, int $at, string $hook, array $args ): void {
	Stage::$queue[] = array( 'by' => $by, 'in_s' => max( 0, $at - time() ), 'hook' => $hook, 'args' => $args );
}
function stage_unschedule( string $hook, array $args ): void {
	$left         = fn( $one ) => $one['hook'] !== $hook || $one['args'] !== $args;
	Stage::$queue = array_values( array_filter( Stage::$queue, $left ) );
}
function wp_schedule_single_event( int $at, string $hook, array $args ): void {
	stage_schedule( 'cron', $at, $hook, $args );
}
function wp_clear_scheduled_hook( string $hook, array $args ): void {
	stage_unschedule( $hook, $args );
}

function wp_unschedule_hook( string $hook ): void {
	Stage::$queue = array_values( array_filter( Stage::$queue, fn( $one ) => $one['hook'] !== $hook || 'cron' !== $one['by'] ) );
}

Stage::$script = json_decode( stream_get_contents( STDIN ), true );
if ( 'action-scheduler' === Stage::$script['scheduler'] ) {
	function as_enqueue_async_action( string $hook, array $args, string $group ): void {
		stage_schedule( 'async', time(), $hook, $args );
	}
	function as_schedule_single_action( int $at, string $hook, array $args, string $group ): void {
		stage_schedule( 'single', $at, $hook, $args );
	}
	function as_unschedule_all_actions( string $hook ): void {
		Stage::$queue = array_values( array_filter( Stage::$queue, fn( $one ) => $one['hook'] !== $hook || 'cron' === $one['by'] ) );
	}
	function as_unschedule_action( string $hook, array $args, string $group ): void {
		stage_unschedule( $hook, $args );
	}
}
foreach ( Stage::$script['constants'] as $name => $value ) {
	define( $name, $value );
}
require __DIR__ . '/../../deploy/cms/wordpress/tandem-hook.php';

/** Save a post as WordPress does, and tell the plugin. */
function stage_save( array $fields, ?array $before ): void {
	$defaults = array(
		'ID'                => 98,
		'post_type'         => 'post',
		'post_status'       => 'publish',
		'post_title'        => 'Hafen &amp; &quot;Kai&quot; — größer/kleiner 港',
		'post_excerpt'      => 'Wie der Hafen wächst',
		'post_content'      => '',
		'post_modified_gmt' => '2026-11-29 20:50:40',
	);
	$post                      = (object) array_merge( $defaults, $fields );
	Stage::$posts[ $post->ID ] = $post;
	$was                       = null !== $before ? (object) array_merge( $defaults, $before ) : null;
	do_action( 'wp_after_insert_post', $post->ID, $post, null !== $was, $was );
}

foreach ( Stage::$script['steps'] as $step ) {
	try {
		switch ( $step['do'] ) {
			case 'set':
				foreach ( $step['values'] as $name => $value ) {
					Stage::${$name} = $value;
				}
				break;
			case 'save':
				stage_save( $step['post'] ?? array(), $step['before'] ?? null );
				break;
			case 'run': // The next of the schedule, whenever it is due.
				$next = array_shift( Stage::$queue );
				if ( null !== $next ) {
					do_action( $next['hook'], ...$next['args'] );
				}
				break;
			case 'body': // What would be asked for now.
				Stage::$want = tandem_hook_want( Stage::$posts[98], 'publish' );
				break;
			case 'fire': // Any other hook of WordPress; what it prints is kept.
				ob_start();
				$_GET = $step['get'] ?? array();
				do_action( $step['hook'], ...array_map( fn( $id ) => Stage::$posts[ $id ], $step['posts'] ?? array() ) );
				Stage::$said .= ob_get_clean();
				break;
			case 'press':
				$link = apply_filters( 'post_row_actions', array(), Stage::$posts[98] )['tandem_hook'] ?? null;
				if ( null === $link ) {
					throw new Died( 'no button' );
				}
				preg_match( '/href="([^"]+)"/', $link, $match );
				parse_str( parse_url( htmlspecialchars_decode( $match[1] ), PHP_URL_QUERY ), $_GET );
				$_GET = array_merge( $_GET, $step['get'] ?? array() );
				do_action( 'admin_post_' . $_GET['action'] );
				break;
		}
	} catch ( Redirected $to ) {
		Stage::$redirect = $to->getMessage();
	} catch ( Died $why ) {
		Stage::$redirect = 'died: ' . $why->getMessage();
	}
}
echo json_encode(
	array(
		'sent'     => Stage::$sent,
		'queue'    => Stage::$queue,
		'meta'     => (object) Stage::$meta,
		'redirect' => Stage::$redirect,
		'said'     => Stage::$said,
		'want'     => Stage::$want,
	)
);
