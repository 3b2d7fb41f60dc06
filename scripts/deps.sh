#!/bin/sh
# Installs what the tests and benchmarks use besides Go, where it is missing: see packages.txt beside this file.
#
#   deps.sh [LIST]
#
# When everything is here it uses no network and takes a moment. Without apt, or without root, it says what is missing and goes
# on: tests skip what they then cannot do. Where CI is set a missing package is an error, because there a test must not skip.
set -u
list=${1:-$(dirname "$0")/packages.txt}
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d} # the tests of this script set these three
cache=${DEPS_CACHE:-/var/cache/penstock-deps}
pause=${DEPS_PAUSE:-5}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

has_module() {
	for py in /usr/bin/python3 python3; do
		"$py" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1" 2>/dev/null && return
	done
	return 1
}

# here PROBE: whether what the second column of the list names is on this machine.
here() {
	case $1 in
	python:*) has_module "${1#python:}" ;;
	/*) for f in $1; do [ -e "$f" ] && return; done; return 1 ;;
	*) command -v "$1" >/dev/null 2>&1 ;;
	esac
}

# look: sets missing to the packages that are not here, and reasons to a line for each.
look() {
	missing= reasons=
	while read -r package probe reason; do
		case $package in '' | '#'*) continue ;; esac
		here "$probe" && continue
		missing="$missing $package"
		reasons="$reasons  $package: no $probe; $reason
"
	done <"$list" || { echo "deps: cannot read $list" >&2; exit 1; }
}

# give_up WHY: what is missing is an error in CI, a message elsewhere.
give_up() {
	{ echo "deps: $1; missing:"; printf %s "$reasons"; } >&2
	case ${CI:-} in
	'' | 0 | false) echo "deps: what needs these is skipped" >&2; exit 0 ;;
	esac
	exit 1
}

look
[ -z "$missing" ] && exit 0
command -v apt-get >/dev/null 2>&1 || give_up "no apt-get on this system: install them in its own way"
[ "$(id -u)" = 0 ] || give_up "not root: run sudo $0"

# One run at a time. The next one may find that nothing is left to do. The list is what is locked: nothing stays behind.
exec 9<"$list" && flock 9 || give_up "cannot lock $list"
look
[ -z "$missing" ] && exit 0

for old in "$cache".*; do # of runs that were killed
	[ -d "$old" ] && ! kill -0 "${old##*.}" 2>/dev/null && rm -rf "$old"
done
cache=$cache.$$
log=$cache/log own_policy=
clean() {
	[ -n "$own_policy" ] && rm -f "$policy"
	rm -rf "$cache"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

# No service may start: etcd's package would. Without an answer of the administrator's this is the answer, as long as this
# script runs; if it is killed, the file removes itself when it is asked next.
if [ ! -e "$policy" ]; then
	own_policy=yes
	printf '#!/bin/sh\nkill -0 %s 2>/dev/null && exit 101\nrm -f "$0"\nexit 0\n' $$ >"$policy" && chmod 755 "$policy"
fi

# apt fetches packages into a directory of this run: in container images every "apt-get update", also that of another process,
# removes those in apt's own, under the feet of an install. They are gone with the directory.
mkdir -p "$cache/archives/partial" || give_up "cannot make $cache"
chown _apt "$cache/archives/partial" 2>/dev/null
apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 \
		-o Dir::Cache::Archives="$cache/archives" "$@" </dev/null 9>&-
}

echo "deps: installing$missing"
all=$missing
try=1
while :; do
	# A source that cannot be updated need not be one that is needed.
	apt update >"$log" 2>&1
	# A package that this system does not have must not keep the others away.
	offered=$(apt-cache show --no-all-versions $missing 2>/dev/null | sed -n 's/^Package: //p' | tr '\n' ' ')
	known=
	for package in $missing; do
		case " $offered" in
		*" $package "*) known="$known $package" ;;
		*) echo "no package $package in the sources of this system" >>"$log" ;;
		esac
	done
	if [ -n "$known" ]; then
		apt --assume-no install $known 2>/dev/null | grep -E '^(Need to get|After this)' | sed 's/^/deps: /'
		apt install $known >>"$log" 2>&1 && [ "$known" = "$missing" ] && break
	fi
	{ echo "deps: try $try failed:"; tail -n 15 "$log"; } >&2
	[ $try = 3 ] && break
	try=$((try + 1))
	sleep "$pause"
	# What an interrupted run left half installed is finished first.
	{ dpkg --configure -a && apt -f install; } >>"$log" 2>&1 9>&-
	look
	[ -z "$missing" ] && break
done

# The service of etcd's package is not wanted at the next start of the machine either.
case " $all " in
*' etcd-server '*)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now etcd.service >/dev/null 2>&1
	elif command -v deb-systemd-helper >/dev/null 2>&1; then
		deb-systemd-helper disable etcd.service >/dev/null 2>&1
	fi ;;
esac

look
[ -z "$missing" ] || give_up "not everything could be installed"
