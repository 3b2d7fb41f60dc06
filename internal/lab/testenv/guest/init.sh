#!/bin/busybox sh
# The first process of a guest. What it has to say goes to the second serial port, in lines that begin with a tag which
# nobody else knows (penstock=TAG on the kernel's command line): "up SECONDS", "failed REASON" or "exit CODE" at the end. In
# between, everything on that port is the output of the program. The first serial port is the console.
export PATH=/usr/bin HOME=/root TMPDIR=/tmp

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
ln -s /proc/self/fd /dev/fd
chmod 755 / # some programs refuse plugins below a directory that everybody may write
chmod 1777 /tmp /dev/shm

for word in $(cat /proc/cmdline); do
	case $word in
	penstock=*) tag=${word#penstock=} ;;
	penstock.id=*) id=${word#penstock.id=} ;;
	esac
done

stty -F /dev/ttyS1 raw -echo
exec 3>/dev/ttyS1

# Nobody else may write when the last line is due. The machine is stopped from outside as soon as that line is there.
finish() {
	kill -9 -1 2>/dev/null
	if [ "$*" != "exit 0" ]; then
		{ echo "--- last messages of the kernel"; dmesg | tail -n 60; } >/dev/ttyS0
		stty -F /dev/ttyS0 -echo # waits until all is sent
	fi
	printf '\n%s %s\n' "$tag" "$*" >&3
	sleep 1
	poweroff -f
}

ulimit -l unlimited
ulimit -n 65536
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
ip link set lo up

for module in /guest/modules/*.ko; do
	[ -e "$module" ] || break
	insmod "$module" || finish "failed insmod $module"
done

# Interfaces get the names that the profile gives them, whatever order the kernel found them in.
for dev in /sys/class/net/*; do
	read -r mac <"$dev/address"
	case $mac in
	52:54:00:71:*)
		ip link set "${dev##*/}" name link0
		ip addr add "10.9.0.$id/24" dev link0
		ip link set link0 up
		# Loopback addresses at both ends of the cable, for what speaks to nothing else: 127.9.0.1 and 127.9.0.2.
		echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet
		ip route del local 127.0.0.0/8 dev lo table local
		ip addr add "127.9.0.$id/24" dev link0
		;;
	52:54:00:70:*)
		while read -r want name; do
			[ "$want" = "$mac" ] && ip link set "${dev##*/}" name "$name"
		done </guest/nics
		;;
	esac
done

/bin/sh /guest/setup >/tmp/setup 2>&1 || finish "failed setup: $(cat /tmp/setup)"
printf '%s up %s\n' "$tag" "$(cut -d' ' -f1 /proc/uptime)" >&3

cd /root
export PENSTOCK_GUEST_ID="$id"
/bin/sh /guest/run </dev/null >&3 2>&3
finish "exit $?"
