package tune

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/ethtool"
)

// fake is a host with one interface, in memory. It behaves as kernels and drivers do: rings are
// rounded up, a table of RSS keeps queues from being taken away, huge pages may come only in part.
type fake struct {
	values  map[Setting]string
	id      identity
	base    facts // what does not change
	pages   int   // huge pages that there is memory for
	lacks   string
	softnet host.Softnet
	keeps   bool                       // the table of RSS does not follow the queues, as with some drivers
	trouble func(op string, s Setting) // may panic(killed{}) or return an error by way of err
	err     error                      // of the operation that trouble was called for
	sets    int
}

// killed is what trouble panics with to end a process where it stands.
type killed struct{}

func newFake() *fake {
	f := &fake{id: identity{"boot-1", "1", 2, "0000:01:00.0"}, pages: 1 << 20}
	f.values = map[Setting]string{"mtu": "1500", "channels": "rx 0 tx 0 other 1 combined 8", "rings": "rx 512 tx 512",
		"rss":       rssDefault,
		"hash udp4": "sd", "hash udp6": "sdfn", "feature rx-gro": "on", "feature rx-lro": "on",
		"feature rx-gro-hw": "off", "feature rx-ntuple-filter": "off",
		"coalesce adaptive-rx": "on", "coalesce adaptive-tx": "off", "napi napi_defer_hard_irqs": "0",
		"napi gro_flush_timeout": "0",
		"irq 40 fake-TxRx-0":     "0-3", "irq 41 fake-TxRx-1": "0-3", "irq 42 fake-TxRx-2": "2",
		"hugepages 2097152 node 0": "16"}
	f.queues(8)
	f.values["rps 6"], f.values["xps 1"] = "1,3", "1" // an administrator has set them
	f.base = facts{driver: "fake", up: true, minMTU: 68, maxMTU: 9216, node: 0, cpus: []int{0, 1, 2, 3},
		lockLimit: math.MaxUint64, isolated: "none",
		governors: []string{"powersave"}, irqBalance: true,
		xdp: &ethtool.XDP{Features: ethtool.XDPBasic | ethtool.XDPRedirect}}
	return f
}

// queues gives the host so many of them: RPS and XPS go with a queue, and come back empty.
func (f *fake) queues(n int) {
	for i := range 16 {
		for _, kind := range []string{"rps", "xps"} {
			s := steeringSetting(kind, i)
			if _, ok := f.values[s]; i >= n {
				delete(f.values, s)
			} else if !ok {
				f.values[s] = noCPUs
			}
		}
	}
}

func (f *fake) settings(string) []Setting { return slices.Sorted(maps.Keys(f.values)) }

func (f *fake) number(s Setting) int {
	n, _ := strconv.Atoi(f.values[s])
	return n
}

func (f *fake) facts(_ context.Context, iface string) (facts, error) {
	out := f.base
	out.mtu = f.number("mtu")
	c := ethtool.Channels{MaxCombined: 16, MaxOther: 1}
	fmt.Sscanf(f.values["channels"], "rx %d tx %d other %d combined %d", &c.Rx, &c.Tx, &c.Other, &c.Combined)
	out.channels = &c
	r := ethtool.Rings{MaxRx: 8192, MaxTx: 8192}
	fmt.Sscanf(f.values["rings"], "rx %d tx %d", &r.Rx, &r.Tx)
	out.rings = &r
	out.rss = f.values["rss"]
	out.udpHash = [2]string{f.values["hash udp4"], f.values["hash udp6"]}
	out.features = map[string]ethtool.Feature{}
	for s, v := range f.values {
		if name, ok := strings.CutPrefix(string(s), "feature "); ok {
			out.features[name] = ethtool.Feature{Name: name, Active: v == "on"}
		}
	}
	out.coalesce = &ethtool.Coalesce{AdaptiveRx: f.values["coalesce adaptive-rx"] == "on",
		AdaptiveTx: f.values["coalesce adaptive-tx"] == "on"}
	out.deferIRQs, out.flushTimeout = f.values["napi napi_defer_hard_irqs"], f.values["napi gro_flush_timeout"]
	for i := range 3 {
		if v, ok := f.values[irqSetting(40+i, fmt.Sprintf("fake-TxRx-%d", i))]; ok {
			out.irqs = append(out.irqs, irq{40 + i, fmt.Sprintf("fake-TxRx-%d", i), i, v})
		}
	}
	for i := range 16 {
		for _, kind := range []string{"rps", "xps"} {
			if v, ok := f.values[steeringSetting(kind, i)]; ok {
				out.steering = append(out.steering, steering{kind, i, v})
			}
		}
	}
	n := f.number("hugepages 2097152 node 0")
	out.hugePages = []hugePages{{2 << 20, 0, n, max(n-8, 0)}} // eight are in use
	return out, nil
}

// hostFacts is a machine with two NUMA nodes, four processors, and what is in values.
func (f *fake) hostFacts(context.Context) (*host.Facts, error) {
	out := &host.Facts{Sysctls: map[string]string{}, Softnet: f.softnet, Missing: map[string]string{}}
	for s, v := range f.values {
		if name, ok := strings.CutPrefix(string(s), "sysctl "); ok {
			out.Sysctls[name] = v
		}
	}
	governor := func(cpu int) string {
		for part := range strings.FieldsSeq(f.values["governor 0-3"]) {
			g, text, _ := strings.Cut(part, "@")
			if l, _ := host.ParseList(text); slices.Contains(l, cpu) {
				return g
			}
		}
		return ""
	}
	for i := range 4 {
		out.CPUs = append(out.CPUs, host.CPU{ID: i, Governor: governor(i)})
	}
	for i := range 2 {
		n := f.number(hugeSetting(2<<20, i))
		out.Nodes = append(out.Nodes, host.Node{ID: i,
			Huge: []host.HugePool{{Size: 2 << 20, Total: n, Free: max(n-8, 0)}}})
		out.Huge = []host.HugePool{{Size: 2 << 20, Total: 2 * n, Free: n, Reserved: 1}}
	}
	return out, nil
}

func (f *fake) identity(string) (identity, error) { return f.id, nil }

func (f *fake) refuses(string, Setting, string) error { return nil }

func (f *fake) needs(_ string, s Setting) (string, string) { return "CAP_NET_ADMIN", f.lacks }

func (f *fake) get(_ string, s Setting) (string, error) {
	if f.happens("get", s); f.err != nil {
		return "", f.err
	}
	v, ok := f.values[s]
	if !ok {
		return "", fmt.Errorf("%w: %s", errGone, s)
	}
	return v, nil
}

func (f *fake) happens(op string, s Setting) {
	f.err = nil
	if f.trouble != nil {
		f.trouble(op, s)
	}
}

func (f *fake) set(_ string, s Setting, v string) error {
	f.sets++
	if f.happens("before", s); f.err != nil {
		return f.err
	}
	if _, ok := f.values[s]; !ok {
		return errGone
	}
	switch {
	case s == "rings":
		var rx, tx int
		fmt.Sscanf(v, "rx %d tx %d", &rx, &tx)
		up := func(n int) int { return 1 << bits.Len(uint(n-1)) }
		v = ringText(up(rx), up(tx))
	case s == "channels":
		var n int
		if _, err := fmt.Sscanf(v, "rx 0 tx 0 other 1 combined %d", &n); err != nil || n < 1 || n > 16 {
			return fmt.Errorf("%q: %v", v, err)
		}
		if t := f.values["rss"]; t != rssDefault {
			for q := range strings.SplitSeq(t, ",") {
				if i, _ := strconv.Atoi(q); i >= n {
					return fmt.Errorf("the table names queue %d", i)
				}
			}
		}
	case strings.HasPrefix(string(s), "hugepages "):
		n, _ := strconv.Atoi(v)
		if n > f.pages {
			v = strconv.Itoa(f.pages)
		}
		if half := (n + f.number(s)) / 2; f.trouble != nil { // killed halfway
			old := f.values[s]
			f.values[s] = strconv.Itoa(half)
			f.happens("half", s)
			f.values[s] = old
		}
	}
	if s == "channels" && f.values[s] != v && f.values["rss"] == rssDefault && f.keeps {
		var old, now int
		fmt.Sscanf(f.values[s], "rx 0 tx 0 other 1 combined %d", &old)
		fmt.Sscanf(v, "rx 0 tx 0 other 1 combined %d", &now)
		var table []string
		for i := range 16 {
			table = append(table, strconv.Itoa(i%min(old, now)))
		}
		f.values["rss"] = strings.Join(table, ",")
	}
	if s == "channels" && f.values[s] != v { // the driver places its interrupts again
		f.values["irq 41 fake-TxRx-1"], f.values["irq 42 fake-TxRx-2"] = "1", v[len(v)-1:]
	}
	f.values[s] = v
	if s == "channels" {
		n := 0
		fmt.Sscanf(v, "rx 0 tx 0 other 1 combined %d", &n)
		f.queues(n)
	}
	f.happens("after", s)
	return f.err
}

func (f *fake) snapshot() map[Setting]string { return maps.Clone(f.values) }

// differ lists settings whose values are different.
func differ(a, b map[Setting]string) (out []string) {
	for s, v := range a {
		if b[s] != v {
			out = append(out, fmt.Sprintf("%s is %s, was %s", s, b[s], v))
		}
	}
	slices.Sort(out)
	return out
}
