package ethtool

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"golang.org/x/sys/unix"
)

// on opens a device in a host, for the rest of the test.
func on(t *testing.T, h *netns.Host, name string) (d *Device) {
	t.Helper()
	if err := h.Do(func() (err error) { d, err = Open(name); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// tool is what the program ethtool says.
func tool(t *testing.T, h *netns.Host, args ...string) string {
	t.Helper()
	p, err := testenv.Tool("ethtool", "ethtool")
	if err != nil {
		testenv.Missing(t, "ethtool", err)
	}
	out, err := h.Output(t.Context(), p, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func queues(t *testing.T, h *netns.Host, pattern string) (n int) {
	t.Helper()
	h.Do(func() error {
		all, err := filepath.Glob(pattern)
		n = len(all)
		return err
	})
	return n
}

func TestVeth(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{Queues: 4}})
	h := n.Hosts[0]
	d := on(t, h, "eth0")
	if x, err := d.Driver(); err != nil || x.Name != "veth" || x.Bus != "" {
		t.Errorf("%+v, %v", x, err)
	}
	c, err := d.Channels()
	if err != nil || c != (Channels{Rx: 4, Tx: 4, MaxRx: 4, MaxTx: 4}) {
		t.Errorf("%+v, %v", c, err)
	}
	c.Rx, c.Tx = 2, 3
	if err := d.SetChannels(c); err != nil {
		t.Fatal(err)
	}
	if rx, tx := queues(t, h, "/sys/class/net/eth0/queues/rx-*"),
		queues(t, h, "/sys/class/net/eth0/queues/tx-*"); rx != 2 || tx != 3 {
		t.Errorf("%d receive queues, %d transmit queues", rx, tx)
	}
	c.Rx = 5
	if err := d.SetChannels(c); !errors.Is(err, ErrRefused) {
		t.Errorf("5 of 4 channels: %v", err)
	}

	// The program ethtool sees the same features, and what we change.
	all, err := d.Features()
	if err != nil || len(all) < 30 {
		t.Fatal(all, err)
	}
	said := tool(t, h, "-k", "eth0")
	for _, f := range all {
		for _, m := range regexp.MustCompile(`(?m)^\s*`+regexp.QuoteMeta(f.Name)+
			`: (\w+)( \[.*fixed.*\])?$`).FindAllStringSubmatch(said, -1) {
			if (m[1] == "on") != f.Active || (m[2] != "") != f.Fixed {
				t.Errorf("%+v, but ethtool says %q", f, m[0])
			}
		}
	}
	before, err := d.Feature("gro")
	if err != nil || before.Fixed {
		t.Fatal(before, err)
	}
	for _, on := range []bool{!before.Active, before.Active} {
		if err := d.SetFeature("gro", on); err != nil {
			t.Fatal(err)
		}
		if said := tool(t, h, "-k", "eth0"); !strings.Contains(said, "generic-receive-offload: "+onOff(on)) {
			t.Errorf("ethtool does not say that GRO is %s:\n%s", onOff(on), said)
		}
	}
	if err := d.SetFeature("no-such-thing", true); !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}

	// Each call says by itself what veth does not have.
	_, err1 := d.Rings()
	_, err2 := d.Coalesce()
	_, err3 := d.RSS()
	_, err4 := d.Rules()
	_, err5 := d.InsertRule(FlowSpec{Type: FlowUDP4, Mask: FlowKey{DstPort: 0xffff}, Location: 1})
	_, err6 := d.HashFields(FlowUDP4)
	for i, err := range []error{err1, err2, err3, err4, err5, err6} {
		if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "eth0") {
			t.Errorf("%d: %v", i+1, err)
		}
	}
	if s, err := d.Timestamps(); err != nil || s.HardwareRx || s.Clock != -1 || s.StampsAll() {
		t.Errorf("%+v, %v", s, err)
	}
	if v, err := d.Speed(); err != nil || v != 10e9 { // what the driver says of itself
		t.Errorf("%d, %v", v, err)
	}

	if err := d.SetMTU(9000); err != nil {
		t.Fatal(err)
	}
	if m, err := d.MTU(); err != nil || m != 9000 {
		t.Error(m, err)
	}
	if err := d.SetMTU(10); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	if err := h.Do(func() error {
		l, err := d.Link()
		if err != nil || l.Name != "eth0" || l.Kind != "veth" || l.MTU != 9000 || l.MinMTU != 68 || l.MaxMTU != 65535 ||
			l.RxQueues != 4 || !l.Up || l.XDPMode != "" {
			return fmt.Errorf("%+v, %v", l, err)
		}
		all, err := Links()
		if err != nil || len(all) != 2 || all[0].Name != "lo" || !all[0].Loopback || all[1] != l {
			return fmt.Errorf("%+v, %v", all, err)
		}
		_, err = Open("eth9")
		if !errors.Is(err, ErrNoDevice) {
			return fmt.Errorf("eth9: %v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// veth declares what it can do with XDP; the loopback device can do nothing.
func TestXDPOf(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	h := n.Hosts[0]
	i, err := on(t, h, "eth0").Index()
	if err != nil {
		t.Fatal(err)
	}
	var veth, lo XDP
	var err1, err2, err3 error
	h.Do(func() error {
		veth, err1 = XDPOf(i)
		lo, err2 = XDPOf(1)
		_, err3 = XDPOf(1 << 20)
		return nil
	})
	if errors.Is(err1, ErrNotSupported) {
		testenv.Missing(t, "a kernel of 6.3 or later", err1)
	}
	// ndo-xmit is there while the peer has a program or GRO.
	if err1 != nil || !veth.Features.Has(XDPBasic|XDPRedirect|XDPRxChunks) || veth.Features.Has(XDPZeroCopy) ||
		!strings.HasPrefix(veth.Features.String(), "basic redirect") {
		t.Errorf("%v, %v", veth, err1)
	}
	if got := veth.Lacks(XDPBasic | XDPZeroCopy); !strings.HasPrefix(got,
		"the driver does not declare xsk-zerocopy (it declares: basic redirect") {
		t.Error(got)
	}
	if got := veth.Lacks(XDPBasic | XDPRedirect); got != "" {
		t.Error(got)
	}
	if veth.RxMetadata&(XDPHash|XDPTimestamp) != XDPHash|XDPTimestamp || veth.ZCSegments != 0 {
		t.Errorf("%+v", veth)
	}
	if err2 != nil || lo.Features != 0 || !strings.HasSuffix(lo.Lacks(XDPBasic), "declares: nothing)") {
		t.Errorf("%v, %v", lo, err2)
	}
	if !errors.Is(err3, ErrNoDevice) {
		t.Error(err3)
	}
}

// Without CAP_NET_ADMIN everything can be read and nothing changed.
func TestWithoutRights(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	d := on(t, n.Hosts[0], "eth0")
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread loses its rights and ends
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			errs <- err
			return
		}
		c, err := d.Channels()
		if err != nil {
			errs <- err
			return
		}
		if err := d.SetChannels(c); !errors.Is(err, ErrNotPermitted) ||
			!strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			errs <- fmt.Errorf("channels: %w", err)
			return
		}
		if err := d.SetMTU(1400); !errors.Is(err, ErrNotPermitted) {
			errs <- fmt.Errorf("MTU: %w", err)
			return
		}
		if err := d.SetFeature("gro", false); !errors.Is(err, ErrNotPermitted) {
			errs <- fmt.Errorf("gro: %w", err)
			return
		}
		errs <- nil
	}()
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

// Nics is the guest with NICs whose kernel drivers are loaded.
func nics() guest.Profile {
	p := guest.Nics
	p.Name = "nics+rss"
	p.Modules = append(slices.Clone(p.Modules), "e1000e", "vmxnet3", "virtio_pci", "virtio_net")
	p.Programs = append(slices.Clone(p.Programs), guest.Program{Name: "ethtool", Package: "ethtool"})
	p.NICs = slices.Clone(p.NICs)
	p.NICs[2].Options += ",rss=on,hash=on" // a table and a choice of fields that the driver lets one set
	return p
}

// Drivers of real cards, beside what the program ethtool says of them.
func TestGuestDrivers(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: nics()}) {
		return
	}
	run := func(args ...string) string {
		out, err := exec.Command("ethtool", args...).CombinedOutput()
		if err != nil {
			t.Logf("ethtool %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	// number is the n-th number that ethtool prints behind a word.
	number := func(text, word string, n int) int {
		m := regexp.MustCompile(`(?m)^`+word+`:\s+(\d+)`).FindAllStringSubmatch(text, -1)
		if n >= len(m) {
			return 0
		}
		v, _ := strconv.Atoi(m[n][1])
		return v
	}
	for _, x := range []struct{ name, driver string }{{"nic0", "e1000e"}, {"nic1", "vmxnet3"}, {"nic2", "virtio_net"}} {
		t.Run(x.driver, func(t *testing.T) {
			d, err := Open(x.name)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if v, err := d.Driver(); err != nil || v.Name != x.driver || !strings.Contains(v.Bus, ":") ||
				!strings.Contains(run("-i", x.name), "bus-info: "+v.Bus) {
				t.Errorf("%+v, %v", v, err)
			}
			// Rings, with the maxima first.
			said := run("-g", x.name)
			r, err := d.Rings()
			if err != nil || r.MaxRx == 0 || number(said, "RX", 0) != r.MaxRx || number(said, "RX", 1) != r.Rx ||
				number(said, "TX", 1) != r.Tx {
				t.Errorf("%+v, %v; ethtool says\n%s", r, err, said)
			}
			if r.MaxRx > r.Rx && x.driver != "virtio_net" {
				r.Rx *= 2
				if err := d.SetRings(r); err != nil {
					t.Error(err)
				}
				if now, err := d.Rings(); err != nil || now.Rx != r.Rx || number(run("-g", x.name), "RX", 1) != r.Rx {
					t.Errorf("%+v, %v", now, err)
				}
			}
			c, err := d.Channels()
			said = run("-l", x.name)
			if err == nil {
				if number(said, "Combined", 0) != c.MaxCombined || number(said, "Combined", 1) != c.Combined ||
					number(said, "RX", 1) != c.Rx {
					t.Errorf("%+v; ethtool says\n%s", c, said)
				}
				t.Logf("channels %+v", c)
				if c.MaxCombined > 1 {
					c.Combined = 2
					err := d.SetChannels(c)
					if errors.Is(err, ErrNotSupported) && x.driver == "vmxnet3" { // shows them, and that is all
						err = nil
					}
					if all, _ := filepath.Glob("/sys/class/net/" + x.name + "/queues/rx-*"); err != nil ||
						number(run("-l", x.name), "Combined", 1) != 2 {
						t.Errorf("%d receive queues, %v", len(all), err)
					}
				}
			} else if !errors.Is(err, ErrNotSupported) {
				t.Error(err)
			}
			co, err := d.Coalesce()
			switch {
			case err == nil:
				if said := run("-c", x.name); number(said, "rx-usecs", 0) != co.RxMicros ||
					number(said, "tx-frames", 0) != co.TxFrames {
					t.Errorf("%+v; ethtool says\n%s", co, said)
				}
			case !errors.Is(err, ErrNotSupported):
				t.Error(err)
			}
			rss, err := d.RSS()
			switch {
			case err == nil:
				said := run("-x", x.name)
				t.Logf("RSS: %d entries, key of %d bytes", len(rss.Table), len(rss.Key))
				if len(rss.Key) > 0 && !strings.Contains(said,
					fmt.Sprintf("%02x:%02x:%02x", rss.Key[0], rss.Key[1], rss.Key[2])) {
					t.Errorf("key %x; ethtool says\n%s", rss.Key, said)
				}
				if len(rss.Table) > 0 {
					for i := range rss.Table {
						rss.Table[i] = 0
					}
					if err := d.SetRSSTable(rss.Table); err != nil && !errors.Is(err, ErrNotSupported) {
						t.Error(err)
					} else if now, err2 := d.RSS(); err == nil && (err2 != nil || !slices.Equal(now.Table, rss.Table)) {
						t.Errorf("%v, %v", now, err2)
					}
				}
			case !errors.Is(err, ErrNotSupported):
				t.Error(err)
			}
			f, err := d.HashFields(FlowTCP4)
			t.Logf("hash of tcp4: %#x, %v", f, err)
			if err != nil && !errors.Is(err, ErrNotSupported) && !errors.Is(err, ErrRefused) {
				t.Error(err)
			}
			if x.driver == "virtio_net" && rss.Table != nil {
				for _, want := range []HashFields{HashSrc | HashDst, HashTuple} {
					if err := d.SetHashFields(FlowUDP4, want); err != nil {
						t.Error(err)
					}
					if got, err := d.HashFields(FlowUDP4); err != nil || got != want {
						t.Errorf("hash of udp4: %v, %v", got, err)
					}
				}
				said := run("-n", x.name, "rx-flow-hash", "udp4")
				if !strings.Contains(said, "L4 bytes 2 & 3") {
					t.Errorf("ethtool says\n%s", said)
				}
			}
			rules, err := d.Rules()
			t.Logf("rules: %v, %v", rules, err)
			if err != nil && !errors.Is(err, ErrNotSupported) && !errors.Is(err, ErrRefused) {
				t.Error(err)
			}
			ts, err := d.Timestamps()
			if err != nil || (ts.Clock >= 0) != ts.HardwareRx {
				t.Errorf("%+v, %v", ts, err)
			}
			i, _ := d.Index()
			_, err = XDPOf(i)
			if release, _ := os.ReadFile("/proc/sys/kernel/osrelease"); strings.HasPrefix(string(release),
				"6.1.") != errors.Is(err, ErrNotSupported) {
				t.Errorf("kernel %s: %v", release, err)
			}
			l, err := d.Link()
			if err != nil || l.Kind != "" || l.MaxMTU < 1500 {
				t.Errorf("%+v, %v", l, err)
			}
		})
	}
}
