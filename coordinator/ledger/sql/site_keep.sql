-- Sources that are not among $1 have no site any more: nothing is paused there.
DELETE FROM paused_site WHERE source <> ALL ($1::text[]) RETURNING source
