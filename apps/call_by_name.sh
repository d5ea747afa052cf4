#!/bin/sh
# Calls the program beside it as the tool that this file is named after.
here=${0%/*}
[ -x "$here/dsckpt" ] || here=$(dirname "$(readlink -f "$0")")
exec "$here/dsckpt" "${0##*/}" "$@"
