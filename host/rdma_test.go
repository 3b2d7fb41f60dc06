package host

import (
	"context"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestFactsOfRoCE(t *testing.T) {
	f := Read(t.Context(), parse(t, recordings(t)["roce.txt"]))
	if len(f.RDMA) != 2 {
		t.Fatalf("%+v", f.RDMA)
	}
	want := RDMA{Name: "mlx5_1", PCI: "0000:4b:00.1", Net: "ens3f1np1", Node: "CA", Provider: "mlx5", File: "uverbs1",
		Ports: []RDMAPort{{ID: 1, State: "ACTIVE",
			Physical: "LinkUp", Layer: "Ethernet", Rate: "100 Gb/sec (2X HDR)", Counters: map[string]uint64{},
			GIDs: []GID{
				{0, "fe80::5", "IB/RoCE v1", "ens3f1np1", 0}, {1, "fe80::5", "RoCE v2", "ens3f1np1", 0},
				{2, "::ffff:198.18.0.6", "IB/RoCE v1", "ens3f1np1.120", 120},
				{3, "::ffff:198.18.0.6", "RoCE v2", "ens3f1np1.120", 120}}}}}
	if d := cmp.Diff(want, f.RDMA[1]); d != "" {
		t.Error(d)
	}
	if c := f.RDMA[0].Ports[0].Counters; !maps.Equal(c,
		map[string]uint64{"rnr_nak_retry_err": 812, "out_of_sequence": 77, "local_ack_timeout_err": 3}) {
		t.Errorf("%v", c)
	}
	n := f.Net("ens3f0np0")
	if d := cmp.Diff(n.DCB, &DCB{PFCKnown: true, PFC: []int{3}, Received: 120412,
		DSCP: map[int]int{26: 3, 48: 6}}); d != "" {
		t.Error(d)
	}
	if n.ECN == nil || List(n.ECN.Notifies) != "0-7" || List(n.ECN.Reacts) != "0-7" || f.Net("ens3f1np1").ECN != nil ||
		f.Net("ens3f1np1.120").DCB != nil {
		t.Errorf("%+v", n.ECN)
	}
	if d := cmp.Diff(f.Verbs, Verbs{Library: "/usr/lib/x86_64-linux-gnu/libibverbs.so.1", Providers: []string{"mlx5"},
		Kernel: true, Namespaces: "shared",
		Files: []DeviceFile{{"uverbs0", "0666", ""}, {"uverbs1", "0600", "permission denied"}}}); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(f.Process.LockRules, []LockRule{{"/etc/security/limits.d/90-rdma.conf", "*", "-", "unlimited"},
		{"/etc/systemd/system.conf.d/rdma.conf", "services", "-", "16G"}}); d != "" {
		t.Error(d)
	}
	if f.Process.Locked != 64<<20 || f.Process.LockedHard != 64<<20 {
		t.Errorf("%+v", f.Process)
	}
	if f := Read(t.Context(), parse(t, recordings(t)["infiniband.txt"])); f.RDMA[0].Ports[0].LID != 47 ||
		f.RDMA[0].Ports[0].SM != 1 || f.RDMA[0].Net != "" || f.Process.LockedHard != ^uint64(0) ||
		f.Verbs.Namespaces != "exclusive" || !f.Verbs.KernelCM {
		t.Errorf("%+v\n%+v", f.RDMA[0], f.Verbs)
	}
	if f := Read(t.Context(), parse(t, recordings(t)["rxe.txt"])); f.RDMA[0].Provider != "rxe" || !f.RDMA[0].Software ||
		f.RDMA[0].Net != "roce0" || len(f.RDMA[0].Ports[0].GIDs) != 2 {
		t.Errorf("%+v", f.RDMA[0])
	}
}

// Addresses of ports, and users that limits name, do not get into a recording; what they are like
// does.
func TestRecordingHidesAddresses(t *testing.T) {
	m := fstest.MapFS{}
	put := func(name, s string) { m[name] = &fstest.MapFile{Data: []byte(s)} }
	m["sys/class/infiniband/mlx5_0"] = &fstest.MapFile{Data: []byte("../../devices/mlx5_0"), Mode: fs.ModeSymlink}
	const port = "sys/devices/mlx5_0/ports/1/"
	put(port+"link_layer", "Ethernet\n")
	table := []string{"fe80:0000:0000:0000:5054:00ff:fe12:3456", "fe80:0000:0000:0000:5054:00ff:fe12:3456",
		"0000:0000:0000:0000:0000:ffff:c0a8:0117", "0000:0000:0000:0000:0000:0000:0000:0000",
		"2a00:1450:4001:0800:0000:0000:0000:200e", "0000:0000:0000:0000:0000:ffff:a9fe:0101",
		"nonsense of 192.168.1.23", "0000:0000:0000:0000:0000:ffff:c0a8:0117"}
	for i, s := range table {
		put(port+"gids/"+string(rune('0'+i)), s+"\n")
		put(port+"gid_attrs/types/"+string(rune('0'+i)), "RoCE v2\n")
		put(port+"gid_attrs/ndevs/"+string(rune('0'+i)), "eth0\n")
	}
	put("etc/security/limits.conf",
		"# SECRET1\nSECRET2 hard memlock 64\n@SECRET3 - memlock 128\n* soft memlock unlimited # SECRET4\nSECRET5 - "+
			"nofile 12\nroot - memlock 1\n")
	put("etc/systemd/system.conf", "[Manager]\nDefaultEnvironment=TOKEN=SECRET6\nDefaultLimitMEMLOCK=1G\n")
	f, rec := Record(t.Context(), m)
	s := text(t, rec)
	for _, secret := range []string{"SECRET", "fe12", "192.168", "c0a8", "200e", "a9fe:0101"} {
		if strings.Contains(s, secret) {
			t.Errorf("the recording has %q:\n%s", secret, s)
		}
	}
	var got []string
	for _, g := range f.RDMA[0].Ports[0].GIDs {
		got = append(got, g.Addr)
	}
	if want := []string{"fe80::1", "fe80::1", "::ffff:198.18.0.2", "2001:db8::3", "::ffff:169.254.0.4",
		"::ffff:198.18.0.2"}; !slices.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
	if want := []LockRule{{"/etc/security/limits.conf", "user", "hard", "64"},
		{"/etc/security/limits.conf", "@group", "-", "128"}, {"/etc/security/limits.conf", "*", "soft", "unlimited"},
		{"/etc/security/limits.conf", "root", "-", "1"},
		{"/etc/systemd/system.conf", "services", "-", "1G"}}; !slices.Equal(f.Process.LockRules, want) {
		t.Errorf("%+v", f.Process.LockRules)
	}
	if d := cmp.Diff(f, Read(t.Context(), parse(t, s))); d != "" {
		t.Error(d)
	}
	// The machine itself is read as it is.
	if live := Read(t.Context(), m); live.RDMA[0].Ports[0].GIDs[2].Addr != "::ffff:192.168.1.23" ||
		live.Missing["/"+port+"gids/6"] == "" {
		t.Errorf("%+v", live.RDMA[0])
	}
}

func TestNamesOfRDMA(t *testing.T) {
	for file, want := range map[string]string{"libmlx5-rdmav34.so": "mlx5", "librxe-rdmav25.so": "rxe",
		"libbnxt_re-rdmav34.so": "bnxt_re"} {
		if got, ok := providerName(file); !ok || got != want {
			t.Errorf("%s: %q", file, got)
		}
	}
	for _, file := range []string{"mlx5-rdmav34.so", "lib-rdmav34.so", "libmlx5.so.1", "libmlx5-rdmav34.so.bak"} {
		if got, ok := providerName(file); ok {
			t.Errorf("%s: %q", file, got)
		}
	}
	if got := parseVLANs("VLAN Dev name | VLAN ID\nName-Type: X\neth0.7 | 7 | eth0\nodd|4095|eth0\nv|x|y\nlan  | 12  " +
		"| eth1\n"); !maps.Equal(got, map[string]int{"eth0.7": 7, "lan": 12}) {
		t.Errorf("%v", got)
	}
}

// What a port's table says is taken over only as an address, and hidden as another one of its kind.
func FuzzAddresses(f *testing.F) {
	f.Add("fe80:0000:0000:0000:5054:00ff:fe12:3456", "* - memlock 12")
	f.Add("0000:0000:0000:0000:0000:ffff:0a08:0001", "a b c d")
	f.Fuzz(func(t *testing.T, addr, rule string) {
		w := recorder{}
		b, ok := w.scrubAddr([]byte(addr))
		again, ok2 := w.scrubAddr([]byte(addr))
		if ok != ok2 || string(b) != string(again) {
			t.Fatalf("%q: %q, then %q", addr, b, again)
		}
		if a, err := netip.ParseAddr(strings.TrimSpace(addr)); err == nil && ok {
			x, err := netip.ParseAddr(strings.TrimSpace(string(b)))
			if err != nil || a.Unmap().Is4() != x.Unmap().Is4() ||
				a.Unmap().IsLinkLocalUnicast() != x.Unmap().IsLinkLocalUnicast() {
				t.Fatalf("%q: %q, %v", addr, b, err)
			}
			w2 := recorder{}
			if twice, _ := w2.scrubAddr(b); string(twice) != string(b) {
				t.Fatalf("%q: %q, and of that %q", addr, b, twice)
			}
		}
		if line, ok := lockRuleOf(rule); ok {
			if x := parseLockRules("", line); len(x) != 1 {
				t.Fatalf("%q: %q", rule, line)
			}
		}
		m := fstest.MapFS{"proc/net/vlan/config": &fstest.MapFile{Data: []byte(rule)},
			"etc/security/limits.conf": &fstest.MapFile{Data: []byte(rule)}}
		facts, rec := Record(context.Background(), m)
		if d := cmp.Diff(facts, Read(context.Background(), parse(t, text(t, rec)))); d != "" {
			t.Fatal(d)
		}
	})
}
