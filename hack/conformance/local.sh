#!/bin/sh
# Runs the conformance suite against the device server and iSCSI server without a pair: one path, two paths, and two
# paths with CHAP. Prints a table per variant; fails on any deviation from reviewed.txt.
set -eu
cd "$(dirname "$0")/../.."
command -v iscsi-test-cu >/dev/null || { echo "conformance: iscsi-test-cu is missing (Debian: libiscsi-bin)" >&2; exit 1; }

work=$(mktemp -d)
pid=
cleanup() {
	if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; fi
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
go build -o "$work/" ./hack/localtarget ./hack/conformance

secret=conformance12
failed=0
for variant in one two chap; do
	listen=127.0.0.1:0,127.0.0.1:0
	chap= login=
	if [ "$variant" = chap ]; then chap="host:$secret" login="host%$secret@"; fi
	rm -rf "$work/state"
	"$work/localtarget" -dir "$work/state" -listen "$listen" -chap "$chap" >"$work/urls" 2>"$work/log" &
	pid=$!
	i=0
	until [ "$(grep -c '^listening' "$work/urls")" = 2 ]; do
		i=$((i + 1))
		if [ $i -gt 300 ] || ! kill -0 "$pid" 2>/dev/null; then cat "$work/log" >&2; exit 1; fi
		sleep 0.1
	done
	urls=$(sed -n "s,^listening on iscsi://,iscsi://$login,p" "$work/urls")
	[ "$variant" = one ] && urls=$(printf '%s\n' "$urls" | head -n 1)
	# shellcheck disable=SC2086 # two URLs are two words
	"$work/conformance" -variant "$variant" $urls || failed=1
	kill "$pid"
	wait "$pid" || { echo "conformance: the target ended badly" >&2; cat "$work/log" >&2; failed=1; }
	pid=
done
exit $failed
