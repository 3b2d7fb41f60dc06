package doctor

import (
	"fmt"
	"strconv"

	"github.com/penstock-io/penstock/host"
)

// singleBuffer is the largest MTU with which a frame of native XDP fits into one buffer: see
// docs/tune.md.
const singleBuffer = 3498

func checkKernel(x *exam) {
	if _, ok := x.f.KernelAtLeast(0, 0); !ok {
		x.unknown("", x.f.Why("/proc/sys/kernel/osrelease"))
		return
	}
	need, what := [2]int{}, ""
	raise := func(a, b int, why string) {
		if a > need[0] || a == need[0] && b > need[1] {
			need, what = [2]int{a, b}, why
		}
	}
	for _, i := range x.n.Interfaces {
		if w := wants(i.Engine); w.Kernel != [2]int{} {
			raise(w.Kernel[0], w.Kernel[1], "engine "+i.Engine)
			if !w.XDP {
				continue
			}
			if i.MTU > singleBuffer || i.Chains {
				raise(6, 6, "AF_XDP with frames of several buffers")
			}
		}
	}
	for _, k := range x.n.Sockets {
		if w := wants(k.Engine); w.Kernel != [2]int{} {
			raise(w.Kernel[0], w.Kernel[1], "engine "+k.Engine)
		}
	}
	if x.direct() {
		raise(5, 12, "dma-buf of GPUs in RDMA")
	}
	enough, _ := x.f.KernelAtLeast(need[0], need[1])
	switch {
	case what == "":
		x.skip("nothing that is asked for needs a certain version")
	case enough:
		x.ok("", fmt.Sprintf("%s; %s needs %d.%d", x.f.Kernel, what, need[0], need[1]))
	default:
		x.add(Finding{Verdict: Fail, Read: x.f.Kernel, Needed: fmt.Sprintf("%d.%d", need[0], need[1]), For: what,
			Fix: []string{"boot a newer kernel"}})
	}
}

func checkLockdown(x *exam) {
	switch l := x.f.Lockdown; l {
	case "":
		if w := x.f.Missing["/sys/kernel/security/lockdown"]; w == "it is not there" {
			x.skip("this kernel has none, or securityfs is not mounted")
		} else {
			x.unknown("", x.f.Why("/sys/kernel/security/lockdown"))
		}
	case "none":
		x.ok("", "none")
	default:
		if !x.fast() {
			x.ok("", l)
			return
		}
		x.add(Finding{Verdict: Warn, Read: l, Needed: "none, if cards are to be set by setpci",
			Fix: []string{"turn Secure Boot off in the firmware, if you may"}})
	}
}

const (
	wantedBuffer = 64 << 20 // what the engine socket does well with at 10 Gb/s and more
	leastBuffer  = 8 << 20
)

func checkBuffers(x *exam) {
	who := x.n.engine(buffers)
	if x.n.Whole && who == nil {
		x.skip("no socket is asked for")
		return
	}
	look := func(name, what string, need uint64, at []Place) {
		v, err := strconv.ParseUint(x.f.Sysctls[name], 10, 63)
		if err != nil {
			x.unknown(what, x.f.Why("/"+host.SysctlFile(name)))
			return
		}
		want, explicit := need, need > 0
		switch {
		case explicit:
		case who != nil:
			want = wantedBuffer
		case x.fast():
			want = leastBuffer
		}
		switch {
		case want == 0 || v >= want:
			x.ok(what, sizeText(v))
		case explicit && x.f.Process.Can(host.CapNetAdmin):
			x.ok(what, fmt.Sprintf("%s, but CAP_NET_ADMIN may have more", sizeText(v)))
		default:
			if !explicit {
				want = wantedBuffer
			}
			x.add(Finding{Subject: what, Verdict: x.bad(explicit), Read: fmt.Sprintf("%s is %s", name, sizeText(v)),
				Needed: sizeText(want), For: forWhat(who), At: at,
				Fix: []string{fmt.Sprintf("penstock tune host --sysctl %s=%d --apply", name, want)}})
		}
	}
	// Of several sockets the one with the largest buffer counts.
	receive, send := x.n.Receive, x.n.Send
	var receiveAt, sendAt []Place
	for i := range x.n.Sockets {
		s := &x.n.Sockets[i]
		if !wants(s.Engine).Buffers {
			continue
		}
		if s.Receive > receive {
			receive, receiveAt = s.Receive, s.at("receive_buffer_bytes")
		}
		if s.Send > send {
			send, sendAt = s.Send, s.at("send_buffer_bytes")
		}
	}
	for _, s := range x.n.Sockets {
		if wants(s.Engine).Buffers && receive == 0 {
			receiveAt = append(receiveAt, s.At)
		}
		if wants(s.Engine).Buffers && send == 0 {
			sendAt = append(sendAt, s.At)
		}
	}
	look("net.core.rmem_max", "receiving", receive, receiveAt)
	look("net.core.wmem_max", "sending", send, sendAt)
}

func checkSoftnet(x *exam) {
	if x.n.Whole && x.n.Interfaces != nil && x.n.engine(kernel) == nil {
		x.skip("nothing that is asked for receives by the kernel")
		return
	}
	s := x.f.Softnet
	if why := x.f.Why("/proc/net/softnet_stat"); why != "" || s.Packets == 0 {
		x.skip("no packet has come")
		return
	}
	// Counts since the boot: some are no illness.
	often := func(n uint64) bool { return n > 0 && n >= s.Packets/1e5 }
	read := fmt.Sprintf("of %d packets %d dropped, %d times cut off", s.Packets, s.Dropped, s.Squeezed)
	switch {
	case often(s.Dropped):
		x.add(Finding{Verdict: Warn, Read: read, Needed: "a longer backlog",
			Fix: []string{fmt.Sprintf("penstock tune host --sysctl net.core.netdev_max_backlog=%d --apply",
				x.double("net.core.netdev_max_backlog", 1000))}})
	case often(s.Squeezed):
		x.add(Finding{Verdict: Warn, Read: read, Needed: "a larger budget",
			Fix: []string{fmt.Sprintf("penstock tune host --sysctl net.core.netdev_budget=%d --sysctl "+
				"net.core.netdev_budget_usecs=%d --apply",
				x.double("net.core.netdev_budget", 300), x.double("net.core.netdev_budget_usecs", 8000))}})
	default:
		x.ok("", read)
	}
}

// double is twice what a parameter of the kernel is.
func (x *exam) double(name string, otherwise int) int {
	n, err := strconv.Atoi(x.f.Sysctls[name])
	if err != nil || n <= 0 || n > 1<<20 {
		n = otherwise
	}
	return 2 * n
}
