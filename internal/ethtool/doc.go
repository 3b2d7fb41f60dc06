// Package ethtool reads and changes the settings of network device drivers: channels, rings,
// offloads, RSS, n-tuple rules, timestamps.
//
//	d, err := ethtool.Open("eth0")           // in the calling thread's network namespace, for good
//	defer d.Close()
//	c, err := d.Channels()
//	if errors.Is(err, ethtool.ErrNotSupported) { ... } // this driver has none; nothing else is wrong
//	c.Combined = 4
//	err = d.SetChannels(c)
//
//	x, err := ethtool.XDPOf(ifindex) // basic, redirect, xsk-zerocopy ...: why native mode or zero-copy is refused
//
// Reading needs no rights, apart from a few drivers; changing needs CAP_NET_ADMIN, and without it
// the error wraps ErrNotPermitted. Each setting is apart: a driver that lacks one answers
// ErrNotSupported for it and not for the others.
//
// The commands and structures are those of linux/ethtool.h, as man 2 ioctl_ethtool and the kernel's
// networking/ethtool-netlink.rst describe them; those of XDP are of the generic netlink family
// netdev (kernel: netlink/specs/netdev.yaml, since Linux 6.3). The ioctls are used because every
// kernel has them and because n-tuple rules have no other interface.
//
// Methods of a Device may be called from any goroutine; no call reports what other programs change
// in between.
package ethtool
