package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/host"
)

func checkInterface(x *exam) {
	for _, i := range x.n.Interfaces {
		n := x.f.Net(i.Name)
		switch {
		case n == nil && x.f.Device(strings.ToLower(i.Name)) != nil:
			p := x.f.Device(strings.ToLower(i.Name))
			if wants(i.Engine).VFIO {
				x.ok(i.Name, fmt.Sprintf("%s, driver %s, no interface of the kernel", p.Name(), orNone(p.Driver)))
				continue
			}
			x.add(Finding{Subject: i.Name, Verdict: Fail,
				Read:   fmt.Sprintf("%s, driver %s, has no interface", p.Name(), orNone(p.Driver)),
				Needed: "an interface of the kernel",
				Fix:    []string{"bind it to the kernel's driver"}})
		case n == nil:
			var have []string
			card, what := strings.Contains(i.Name, ":"), "name"
			for _, n := range x.f.Nets {
				switch {
				case n.Type == 772:
				case card && n.PCI != "":
					have, what = append(have, fmt.Sprintf("%s (%s)", n.PCI, n.Name)), "address"
				default:
					have = append(have, n.Name)
				}
			}
			x.add(Finding{Subject: i.Name, Verdict: Fail, Read: "there is none of this " + what + "; there are: " +
				orNone(strings.Join(have, ", ")), Needed: "an interface " + i.Name,
				Fix: []string{"name one that is here",
					"ConnectX-7 of GB10 machines is only there with a cable in it"}})
		case !n.Up:
			x.add(Finding{Subject: n.Name, Verdict: Fail, Read: "switched off", Needed: "up",
				Fix: []string{"ip link set dev " + n.Name + " up"}})
		case n.Carrier == "down" || n.Carrier == "lowerlayerdown" || n.Carrier == "notpresent":
			x.add(Finding{Subject: n.Name, Verdict: Fail, Read: "no carrier", Needed: "a link",
				Fix: []string{"look at the cable, the other end and the card: ethtool " + n.Name}})
		default:
			x.ok(n.Name, netText(x.f, n))
		}
	}
	x.sockets()
	if x.n.Interfaces != nil {
		if x.out == nil {
			x.skip("no network interface is asked for")
		}
		return
	}
	cards := 0
	for i := range x.f.Nets {
		n := &x.f.Nets[i]
		if n.Virtual {
			continue
		}
		cards++
		if n.Up {
			x.ok(n.Name, netText(x.f, n))
		}
	}
	switch {
	case x.out != nil:
	case cards > 0:
		x.add(Finding{Verdict: Warn, Read: plural(cards, "card") + ", none of them switched on",
			Needed: "one that is up", Fix: []string{"ip link set dev IF up"}})
	default:
		x.skip("there is no network card")
	}
}

// sockets looks for the addresses that sockets are opened on.
func (x *exam) sockets() {
	for i := range x.n.Sockets {
		s := &x.n.Sockets[i]
		subject := "socket " + s.Name
		switch {
		case s.Group != "":
			x.skipOf(subject, "joins the multicast group "+s.Group+", which no interface has as its address")
		case s.Local == "":
			x.skipOf(subject, "any address of the machine will do")
		case s.Looked && s.Interface != "":
			x.ok(subject, s.Local+" is on "+s.Interface)
		case s.Looked:
			x.add(Finding{Subject: subject, Verdict: Fail, Read: "no interface has the address " + s.Local,
				Needed: s.Local, At: s.at("local"),
				Fix: []string{"name an address of this machine: ip address",
					"or give it to an interface: ip address add " + s.Local + "/24 dev IF"}})
		default:
			x.add(Finding{Subject: subject, Verdict: Unknown,
				Why: "recordings have no IP addresses: which interface has " + s.Local + " is not known",
				At:  s.at("local")})
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// netText is an interface in a line.
func netText(f *host.Facts, n *host.Net) string {
	var parts []string
	if p := f.Device(n.PCI); p != nil {
		parts = append(parts, p.Name())
	}
	if n.Driver != "" {
		parts = append(parts, "driver "+n.Driver)
	}
	if n.Mbits > 0 {
		parts = append(parts, speedText(n.Mbits))
	}
	if n.Node >= 0 && len(f.Nodes) > 1 {
		parts = append(parts, fmt.Sprintf("NUMA node %d", n.Node))
	}
	if n.Master != "" {
		parts = append(parts, "in "+n.Master)
	}
	return strings.Join(parts, ", ")
}

func checkMTU(x *exam) {
	for _, u := range x.nets() {
		switch n := u.net; {
		case n.MTU == 0:
			x.unknown(u.Name, x.f.Why("/sys/class/net/"+u.Name))
		case u.MTU > 0 && n.MTU < u.MTU:
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: fmt.Sprint(n.MTU), Needed: fmt.Sprint(u.MTU),
				For: "as asked for", At: u.at("mtu"),
				Fix: []string{fmt.Sprintf("penstock tune nic %s --mtu %d --apply", u.Name, u.MTU),
					"the switch and the other machines must have it, too"}})
		case u.slot > 0 && n.Type == 1 && n.MTU+etherHeader > u.slot:
			x.add(Finding{Subject: u.Name, Verdict: Warn,
				Read:   fmt.Sprintf("%d, and a slot has room for %d bytes of a packet", n.MTU, u.slot),
				Needed: fmt.Sprintf("%d bytes", n.MTU+etherHeader),
				For:    "packets of the MTU with their Ethernet header: longer ones than a slot are dropped",
				At:     []Place{u.slotAt},
				Fix:    []string{fmt.Sprintf("a buf_size that is %d larger", n.MTU+etherHeader-u.slot)}})
		case u.packet(x.n.Sockets) > n.MTU:
			s := longest(u.Name, x.n.Sockets)
			x.add(Finding{Subject: u.Name, Verdict: Warn, Read: fmt.Sprint(n.MTU), Needed: fmt.Sprint(s.Packet),
				For: "datagrams in one piece: one lost fragment loses all of it", At: s.at("packet_bytes"),
				Fix: []string{fmt.Sprintf("a payload that is %d bytes shorter", s.Packet-n.MTU),
					fmt.Sprintf("penstock tune nic %s --mtu %d --apply", u.Name, s.Packet)}})
		case u.MTU == 0 && n.Type == 1 && u.Frame > jumboFrame && u.Frame/2 >= n.MTU+etherHeader:
			x.add(Finding{Subject: u.Name, Verdict: Warn,
				Read:   fmt.Sprintf("%d, and each packet has %d bytes of memory", n.MTU, u.Frame),
				Needed: "longer frames, or smaller slots", At: u.at("frame_bytes"),
				Fix: []string{fmt.Sprintf("penstock tune nic %s --mtu %d --apply", u.Name,
					min(u.Frame-etherHeader, 9000)), "or a smaller buf_size: the rest of each slot is never used"}})
		case u.MTU == 0 && n.MTU <= 1500 && n.Type == 1 && fast(n):
			x.add(Finding{Subject: u.Name, Verdict: Warn, Read: fmt.Sprint(n.MTU),
				Needed: "9000, if the network has it", For: "at " + speedText(n.Mbits),
				Fix: []string{fmt.Sprintf("penstock tune nic %s --mtu 9000 --apply", u.Name)}})
		default:
			x.ok(u.Name, fmt.Sprint(n.MTU))
		}
	}
}

// jumboFrame is a slot that is larger than frames of the usual MTU take, rounded up to a page as
// they may be.
const jumboFrame = 4096

// longest is the socket on an interface that sends the longest packets.
func longest(iface string, sockets []Socket) (out *Socket) {
	for i := range sockets {
		if s := &sockets[i]; s.Interface == iface && (out == nil || s.Packet > out.Packet) {
			out = s
		}
	}
	return out
}

// packet is the longest packet of IP that sockets on the interface send; 0: any.
func (i *Interface) packet(sockets []Socket) int {
	if s := longest(i.Name, sockets); s != nil && wants(i.Engine).Buffers {
		return s.Packet
	}
	return 0
}

// asked is what the driver said; without it the finding is Unknown.
func (x *exam) asked(u used) *host.Ethtool {
	if u.net.Ethtool == nil {
		x.unknown(u.Name, x.f.Why("/penstock/ethtool/"+u.Name))
	}
	return u.net.Ethtool
}

func checkQueues(x *exam) {
	for _, u := range x.nets() {
		e := x.asked(u)
		switch {
		case e == nil:
		case e.RxQueues == 0:
			x.skipOf(u.Name, "the driver does not speak of queues")
		case u.Queues > e.RxQueues && u.Queues > e.MaxQueues:
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: fmt.Sprintf("%d, and the card can have %d", e.RxQueues,
				e.MaxQueues), Needed: fmt.Sprint(u.Queues), At: u.at("queues"),
				Fix: []string{fmt.Sprintf("ask for at most %d, or use another card", e.MaxQueues)}})
		case u.Queues > e.RxQueues:
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: fmt.Sprint(e.RxQueues), Needed: fmt.Sprint(u.Queues),
				At:  u.at("queues"),
				Fix: []string{fmt.Sprintf("penstock tune nic %s --queues %d --apply", u.Name, u.Queues)}})
		case u.Queues > 0 && u.Queues < e.RxQueues && wants(u.Engine).XDP:
			x.add(Finding{Subject: u.Name, Verdict: Warn, Read: fmt.Sprint(e.RxQueues),
				Needed: fmt.Sprintf("just %d", u.Queues), For: "AF_XDP gets only what arrives at its own queues",
				At: u.at("queues"),
				Fix: []string{fmt.Sprintf("penstock tune nic %s --queues %d --apply", u.Name, u.Queues),
					"or steer by rules: see docs/tune.md, N-tuple rules"}})
		case u.Queues == 0 && e.RxQueues == 1 && e.MaxQueues > 1:
			x.add(Finding{Subject: u.Name, Verdict: Warn, Read: fmt.Sprintf("1 of %d", e.MaxQueues),
				Needed: "as many as cores that receive",
				Fix:    []string{fmt.Sprintf("penstock tune nic %s --queues %d --apply", u.Name, min(e.MaxQueues, 4))}})
		default:
			x.ok(u.Name, fmt.Sprintf("%d of %d", e.RxQueues, max(e.MaxQueues, e.RxQueues)))
		}
	}
}

func (x *exam) skipOf(subject, why string) {
	x.add(Finding{Subject: subject, Verdict: NotApplicable, Why: why})
}

// leastRing is how long rings are that were set up for fast packets, as package tune does it.
const leastRing = 2048

func checkRings(x *exam) {
	for _, u := range x.nets() {
		e := x.asked(u)
		if e == nil {
			continue
		}
		want := u.Ring
		if want == 0 {
			want = min(max(leastRing, u.Depth), e.MaxRxRing)
		}
		switch {
		case e.RxRing == 0:
			x.skipOf(u.Name, "the driver does not speak of rings")
		case u.Ring > e.MaxRxRing:
			x.add(Finding{Subject: u.Name, Verdict: Fail,
				Read: fmt.Sprintf("%d, and the card can have %d", e.RxRing, e.MaxRxRing), Needed: fmt.Sprint(u.Ring),
				Fix: []string{fmt.Sprintf("ask for at most %d", e.MaxRxRing)}})
		case e.RxRing < want && (u.needed || fast(u.net)):
			x.add(Finding{Subject: u.Name, Verdict: x.bad(u.Ring > 0),
				Read: fmt.Sprintf("%d of %d descriptors", e.RxRing, e.MaxRxRing), Needed: fmt.Sprint(want),
				At:  u.at("depth"),
				Fix: []string{fmt.Sprintf("penstock tune nic %s --rings %d --apply", u.Name, want)}})
		default:
			x.ok(u.Name, fmt.Sprintf("%d of %d descriptors", e.RxRing, e.MaxRxRing))
		}
	}
}

func checkOffloads(x *exam) {
	for _, u := range x.nets() {
		if !wants(u.Engine).Frames {
			continue
		}
		e := x.asked(u)
		if e == nil {
			continue
		}
		var on, fixed []string
		for _, name := range []string{"rx-lro", "rx-gro-hw", "rx-gro"} {
			v := e.Features[name]
			if name == "rx-gro" && wants(u.Engine).XDP { // native XDP comes before it
				continue
			}
			if strings.HasPrefix(v, "on") {
				on = append(on, name)
				if strings.Contains(v, "fixed") {
					fixed = append(fixed, name)
				}
			}
		}
		if on == nil {
			x.ok(u.Name, "packets come as they arrived")
			continue
		}
		f := Finding{Subject: u.Name, Verdict: Warn, Read: strings.Join(on, ", ") + " on", Needed: "off",
			For: "engine " + u.Engine,
			Fix: []string{fmt.Sprintf("penstock tune nic %s --apply", u.Name)}}
		if fixed != nil {
			f.Why = "the driver does not let it be turned off: " + strings.Join(fixed, ", ")
			f.Fix = []string{"turn it off where the card comes from (the hypervisor), or use another card"}
		}
		x.add(f)
	}
	if x.out == nil {
		x.skip("no engine is asked for that cares")
	}
}

func checkXDP(x *exam) {
	for _, u := range x.nets() {
		if !wants(u.Engine).XDP {
			continue
		}
		e := x.asked(u)
		if e == nil {
			continue
		}
		words := strings.Fields(e.XDP)
		has := func(w string) bool { return slices.Contains(words, w) }
		switch {
		case u.ZeroCopy && e.XDPKnown && !has("xsk-zerocopy"):
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: fmt.Sprintf("driver %s declares: %s", orNone(e.Driver),
				orNone(e.XDP)), Needed: "xsk-zerocopy", For: "zero-copy and nothing else", At: u.at("zero_copy"),
				Fix: []string{"bind: auto takes a copy where there is no zero-copy", "use another card or driver"}})
		case u.Native && e.XDPKnown && !(has("basic") && has("redirect")):
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: fmt.Sprintf("driver %s declares: %s", orNone(e.Driver),
				orNone(e.XDP)), Needed: "basic redirect", For: "native XDP and nothing else", At: u.at("native"),
				Fix: []string{"attach: auto takes generic XDP where the driver has none",
					"use another card or driver"}})
		case u.Native && u.Chains && e.XDPKnown && !has("rx-sg"):
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: fmt.Sprintf("driver %s declares: %s", orNone(e.Driver),
				orNone(e.XDP)), Needed: "rx-sg", For: "frames of several buffers in native XDP", At: u.at("chains"),
				Fix: []string{fmt.Sprintf("slots as long as the frames (buf_size), and an MTU of at most %d",
					singleBuffer), "or attach: auto, which takes generic XDP"}})
		case e.XDPMode != "":
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: "another program is attached, " + e.XDPMode,
				Needed: "none", Fix: []string{"ip link set dev " + u.Name + " xdp off"},
				Why: "the xdp engine does not replace it"})
		case !e.XDPKnown:
			x.unknown(u.Name, orNone(e.Errors["XDP"])+"; kernels say it since 6.3")
		case has("basic") && has("redirect") && u.MTU > singleBuffer && !has("rx-sg"):
			x.add(Finding{Subject: u.Name, Verdict: Warn, Read: e.XDP, Needed: "rx-sg",
				For: fmt.Sprintf("MTU %d: a frame takes several buffers", u.MTU),
				Fix: []string{fmt.Sprintf("an MTU of at most %d, or generic mode, which is slower", singleBuffer)}})
		case has("xsk-zerocopy"):
			x.ok(u.Name, "native, with zero-copy")
		case has("basic") && has("redirect"):
			x.ok(u.Name, "native, with a copy")
		default:
			x.add(Finding{Subject: u.Name, Verdict: Warn,
				Read: fmt.Sprintf("driver %s declares no native XDP", orNone(e.Driver)), Needed: "basic redirect",
				Fix: []string{"use another card or driver; generic mode works, slower"}})
		}
	}
	if x.out == nil {
		x.skip("the engine xdp is not asked for")
	}
}

func checkIRQ(x *exam) {
	for _, u := range x.nets() {
		var queues []host.IRQ
		for _, q := range u.net.IRQs {
			if q.Queue >= 0 {
				queues = append(queues, q)
			}
		}
		if queues == nil {
			x.skipOf(u.Name, "it has no interrupts of its queues")
			continue
		}
		if !u.needed && !fast(u.net) {
			x.ok(u.Name, fmt.Sprintf("%s; no low-latency requirement", plural(len(queues), "interrupt")))
			continue
		}
		near := []int(nil)
		if n := x.f.Node(u.net.Node); n != nil && len(x.f.Nodes) > 1 {
			near = n.CPUs
		}
		spread, far, on := 0, 0, map[int]int{}
		for _, q := range queues {
			at := q.CPUs
			if len(q.Effective) > 0 {
				at = q.Effective
			}
			if len(at) != 1 {
				spread++
			} else {
				on[at[0]]++
			}
			if near != nil && len(common(at, near)) == 0 {
				far++
			}
		}
		crowded := 0
		for _, n := range on {
			if n > 2 { // a queue has one to receive and one to send
				crowded = max(crowded, n)
			}
		}
		var wrong []string
		if spread > 0 {
			wrong = append(wrong, fmt.Sprintf("%d of %d may go to several processors", spread, len(queues)))
		}
		if far > 0 {
			wrong = append(wrong, fmt.Sprintf("%d of %d go to another NUMA node than %d", far, len(queues), u.net.Node))
		}
		polled := x.interrupted(u, queues)
		if polled != nil {
			wrong = append(wrong, fmt.Sprintf("some go to %s, where this file polls", host.List(polled)))
		}
		if crowded > 0 && len(x.f.CPUs) > 1 {
			wrong = append(wrong, fmt.Sprintf("%d go to one processor", crowded))
		}
		balanced := slices.Contains(x.f.Daemons, "irqbalance")
		f := Finding{Subject: u.Name, Verdict: Warn, Needed: "each queue's to one processor near the card",
			Read: strings.Join(wrong, "; "), At: x.usesOf(polled)}
		if polled != nil {
			f.Needed += " where nothing else polls"
		}
		switch {
		case wrong == nil && !balanced:
			x.ok(u.Name, fmt.Sprintf("%s, each with its processor near the card", plural(len(queues), "interrupt")))
			continue
		case wrong == nil:
			f.Read = "each has its processor, but irqbalance runs and will move them"
			f.Fix = []string{"systemctl stop irqbalance"}
		default:
			if balanced {
				f.Fix = []string{"systemctl stop irqbalance"}
			}
			if polled != nil {
				f.Fix = append(f.Fix, "poll on others: "+host.List(x.spare(u, queues)))
			}
			if polled == nil || len(wrong) > 1 {
				f.Fix = append(f.Fix, fmt.Sprintf("penstock tune nic %s --apply", u.Name))
			}
		}
		x.add(f)
	}
}

// interrupted are the processors on which a file polls, and which interrupts of the interface's
// queues take away. With busy polling the poller does the work of its interrupts; engines in user
// space have none.
func (x *exam) interrupted(u used, queues []host.IRQ) []int {
	if u.BusyPoll || !wants(u.Engine).Frames || x.n.Uses == nil {
		return nil
	}
	polling := x.polling()
	var hit []int
	for _, q := range queues {
		at := q.CPUs
		if len(q.Effective) > 0 {
			at = q.Effective
		}
		if len(at) > 1 { // it wanders: another check says so
			continue
		}
		hit = append(hit, common(polling, at)...)
	}
	slices.Sort(hit)
	return slices.Compact(hit)
}

// spare are processors near the card to which no interrupt of its queues goes, and to which no
// poller or worker is bound.
func (x *exam) spare(u used, queues []host.IRQ) (out []int) {
	for _, c := range x.f.CPUs {
		out = append(out, c.ID)
	}
	if n := x.f.Node(u.net.Node); n != nil {
		out = common(out, n.CPUs)
	}
	for _, q := range queues {
		if len(q.Effective) == 1 {
			out = without(out, q.Effective)
		} else if len(q.CPUs) == 1 {
			out = without(out, q.CPUs)
		}
	}
	return without(out, x.n.Cores)
}

func checkDrops(x *exam) {
	for _, u := range x.nets() {
		s := u.net.Statistics
		if s == nil {
			x.unknown(u.Name, x.f.Why("/sys/class/net/"+u.Name))
			continue
		}
		lost := map[string]uint64{}
		for _, n := range []string{"rx_crc_errors", "rx_fifo_errors", "rx_missed_errors", "rx_over_errors",
			"rx_dropped"} {
			if s[n] > 0 {
				lost[n] = s[n]
			}
		}
		if e := u.net.Ethtool; e != nil {
			for n, v := range e.Counters {
				if strings.Contains(n, "out_of_buffer") || strings.Contains(n, "discards_phy") ||
					strings.Contains(n, "no_dma") || strings.Contains(n, "rx_no_buffer") {
					lost[n] = v
				}
			}
		}
		worst := uint64(0)
		for _, v := range lost {
			worst = max(worst, v)
		}
		total := s["rx_packets"]
		read := fmt.Sprintf("none of %d packets", total)
		if len(lost) > 0 {
			read = fmt.Sprintf("of %d packets %s", total, countText(lost, 4))
		}
		// What a card lost while it came up, years ago, is no illness; one in a million is worth a
		// look.
		if worst > total/1e6 {
			f := Finding{Subject: u.Name, Verdict: Warn, Read: read, Needed: "none, since the driver was loaded"}
			if lost["rx_crc_errors"] > total/1e6 {
				f.Fix = append(f.Fix, "rx_crc_errors: clean or change the cable and the modules")
			}
			if e := u.net.Ethtool; e != nil && e.RxRing < e.MaxRxRing {
				f.Fix = append(f.Fix, fmt.Sprintf("longer rings: penstock tune nic %s --rings %d --apply", u.Name,
					min(max(8192, 2*e.RxRing), e.MaxRxRing)))
			}
			f.Fix = append(f.Fix, "more queues and cores, or a reader that keeps up")
			x.add(f)
			continue
		}
		x.ok(u.Name, read)
	}
}

// countText lists counters, the largest first, at most so many.
func countText(m map[string]uint64, most int) string {
	names := slices.Collect(maps.Keys(m))
	slices.SortFunc(names, func(a, b string) int {
		if m[a] != m[b] {
			if m[a] > m[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, n := range names[:min(len(names), most)] {
		parts = append(parts, fmt.Sprintf("%s %d", n, m[n]))
	}
	if len(names) > most {
		parts = append(parts, fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(parts, ", ")
}

func checkPause(x *exam) {
	for _, u := range x.nets() {
		e := x.asked(u)
		if e == nil {
			continue
		}
		seen := map[string]uint64{}
		for n, v := range e.Counters {
			l := strings.ToLower(n)
			if strings.Contains(l, "pause") || strings.Contains(l, "pfc") || strings.Contains(l, "xoff") {
				seen[n] = v
			}
		}
		state := "the driver has none"
		if p := e.Pause; p != nil {
			on := func(b bool) string {
				if b {
					return "on"
				}
				return "off"
			}
			state = fmt.Sprintf("obeys %s, asks %s", on(p.Rx), on(p.Tx))
		}
		switch {
		case len(seen) > 0:
			f := Finding{Subject: u.Name, Verdict: Warn, Read: state + "; " + countText(seen, 4),
				Needed: "no pauses, since the driver was loaded",
				Fix: []string{"find the slow side: rx_ counters mean that the other end asks, tx_ that this " +
					"card does"}}
			if p := e.Pause; p != nil && (p.Rx || p.Tx) {
				f.Fix = append(f.Fix, "if the network is not to be lossless: ethtool -A "+u.Name+
					" autoneg off rx off tx off")
			}
			x.add(f)
		case e.Pause == nil:
			x.skipOf(u.Name, state)
		default:
			x.ok(u.Name, state+"; no pauses were counted")
		}
	}
}

func checkHardwareTime(x *exam) {
	for _, u := range x.nets() {
		if !u.HardwareTime {
			continue
		}
		e := x.asked(u)
		if e == nil {
			continue
		}
		synced := slices.Contains(x.f.Daemons, "ptp4l") || slices.Contains(x.f.Daemons, "phc2sys") ||
			slices.Contains(x.f.Daemons, "ts2phc")
		switch {
		case !e.HardwareRx || u.net.Clock < 0:
			x.add(Finding{Subject: u.Name, Verdict: Fail, Read: "the card has no timestamps of received packets",
				Needed: "hardware timestamps", At: u.at("hardware_time"),
				Fix: []string{"use another card, or timestamps by the kernel"}})
		case !e.StampsAll:
			x.add(Finding{Subject: u.Name, Verdict: Warn, Read: "the card has timestamps only of PTP packets",
				Needed: "timestamps of every packet", At: u.at("hardware_time"),
				Fix: []string{"use another card, or timestamps by the kernel"}})
		case !synced:
			x.add(Finding{Subject: u.Name, Verdict: Warn,
				Read:   fmt.Sprintf("clock /dev/ptp%d, which no program synchronises", u.net.Clock),
				Needed: "ptp4l, phc2sys or ts2phc", At: u.at("hardware_time"),
				Fix: []string{fmt.Sprintf("ptp4l -i %s, or phc2sys -s CLOCK_REALTIME -c %s -O 0", u.Name, u.Name)}})
		default:
			x.ok(u.Name, fmt.Sprintf("every packet, by /dev/ptp%d", u.net.Clock))
		}
	}
	if x.out == nil {
		x.skip("nothing asks for them")
	}
}
