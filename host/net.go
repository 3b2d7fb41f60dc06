package host

import (
	"encoding/json"
	"path"
	"strconv"
	"strings"
)

// object reads a file of JSON.
func (r *reader) object(name string, to any) {
	b, ok := r.raw(name)
	if !ok {
		return
	}
	if err := json.Unmarshal(b, to); err != nil {
		r.miss(name, err)
	}
}

// statistics are the counters of an interface that show loss.
var statistics = []string{"rx_packets", "rx_crc_errors", "rx_dropped", "rx_errors", "rx_fifo_errors",
	"rx_missed_errors", "rx_over_errors", "tx_packets", "tx_dropped", "tx_errors"}

func (r *reader) nets(f *Facts) {
	const dir = "sys/class/net"
	for _, name := range r.list(dir) {
		at, ok := r.link(dir + "/" + name)
		if !ok { // bonding_masters is a file there
			delete(r.missing, "/"+dir+"/"+name)
			continue
		}
		n := Net{Name: name, Node: -1, Clock: -1, Virtual: strings.Contains(at, "/virtual/"),
			Type: r.number(at+"/type", 0), MTU: r.number(at+"/mtu", 0),
			Up: r.number(at+"/flags", 0)&1 != 0, Carrier: r.word(at + "/operstate"),
			Statistics: map[string]uint64{}}
		if !n.Virtual { // drivers in software make one up, or say EINVAL
			n.Mbits = max(r.number(at+"/speed", 0), 0)
		}
		r.card(f, &n, at)
		if to, ok := r.link(at + "/master"); ok {
			n.Master = path.Base(to)
		}
		delete(r.missing, "/"+at+"/master") // most have none
		for _, s := range statistics {
			if v := r.number(at+"/statistics/"+s, 0); v > 0 {
				n.Statistics[s] = uint64(v)
			}
		}
		if n.Type != typeLoopback {
			r.object(ethtoolDir+"/"+name, &n.Ethtool)
		}
		if e := n.Ethtool; e != nil {
			n.Clock = max(n.Clock, e.Clock)
			if n.Driver == "" {
				n.Driver = e.Driver
			}
		}
		f.Nets = append(f.Nets, n)
	}
}

const typeLoopback = 772

// card finds the card of an interface, with its driver and its interrupts.
func (r *reader) card(f *Facts, n *Net, at string) {
	dev, ok := r.link(at + "/device")
	if n.Virtual {
		delete(r.missing, "/"+at+"/device")
	}
	if !ok {
		return
	}
	if to, ok := r.link(dev + "/driver"); ok {
		n.Driver = path.Base(to)
	}
	for d := dev; d != "." && d != "sys"; d = path.Dir(d) { // a virtio device is below its card
		if pciAddr.MatchString(path.Base(d)) {
			n.PCI, dev = path.Base(d), d
			break
		}
	}
	n.Node = r.number(dev+"/numa_node", -1)
	for _, id := range r.numbered(dev+"/ptp", "ptp") {
		n.Clock = id
	}
	delete(r.missing, "/"+dev+"/ptp")
	for _, id := range r.numbered(dev+"/msi_irqs", "") {
		r.raw(dev + "/msi_irqs/" + strconv.Itoa(id)) // so that a recording has it
		name := r.word("sys/kernel/irq/" + strconv.Itoa(id) + "/actions")
		if name == "" { // no driver uses it
			continue
		}
		q := IRQ{Queue: Queue(name)}
		q.CPUs, _ = r.processors("proc/irq/" + strconv.Itoa(id) + "/smp_affinity_list")
		q.Effective, _ = r.processors("proc/irq/" + strconv.Itoa(id) + "/effective_affinity_list")
		n.IRQs = append(n.IRQs, q)
	}
}
