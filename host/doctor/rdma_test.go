package doctor

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/penstock-io/penstock/host"
)

// Reports of what RDMA depends on.
func TestRDMAReports(t *testing.T) {
	for _, x := range []struct {
		name, machine string
		devices       []string
		needs         Needs
	}{
		{"rdma-roce", "roce", nil, Needs{}},
		{"rdma-roce-second", "roce", []string{"mlx5_1"}, Needs{Locked: 1 << 30}},
		{"rdma-infiniband", "infiniband", nil, Needs{}},
		{"rdma-infiniband-second", "infiniband", []string{"mlx5_1"}, Needs{}},
		{"rdma-rxe", "rxe", nil, Needs{}},
		{"rdma-laptop", "laptop", nil, Needs{}},
		{"rdma-server", "server", []string{"mlx5_0"}, Needs{GPUs: []string{AnyGPU}}},
	} {
		r := RunRDMA(machine(t, x.machine), x.needs, x.devices)
		b, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		for ext, got := range map[string][]byte{".golden": []byte(r.Text(true)), ".json": append(b, '\n')} {
			file := filepath.Join("testdata", x.name+ext)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v; go test ./host/doctor -run RDMAReports -update writes it", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: it is\n%s\nexpected\n%s", file, got, want)
			}
		}
		for line := range strings.Lines(r.Text(true)) {
			line = strings.TrimRight(line, "\n")
			if utf8.RuneCountInString(line) > textWidth && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: a line of %d columns: %s", x.name, utf8.RuneCountInString(line), line)
			}
		}
		for _, f := range r.Findings {
			if (f.Verdict == Warn || f.Verdict == Fail) && (f.Read == "" || f.Needed == "" || len(f.Fix) == 0) {
				t.Errorf("%s: %+v does not say what is, what should be and how to fix it", x.name, f)
			}
			if (f.Verdict == Unknown || f.Verdict == NotApplicable) && f.Why == "" {
				t.Errorf("%s: %+v does not say why", x.name, f)
			}
			if !slices.Contains(rdmaChecks, f.Check) {
				t.Errorf("%s: %+v is of another topic", x.name, f)
			}
		}
	}
	for _, id := range rdmaChecks {
		if !slices.ContainsFunc(Checks(), func(c Check) bool { return c.ID == id }) {
			t.Errorf("no check is called %q", id)
		}
	}
}

const (
	roce0, roce1 = "0000:4b:00.0/infiniband/mlx5_0/ports/1/", "0000:4b:00.1/infiniband/mlx5_1/ports/1/"
	ib0          = "0000:21:00.0/infiniband/mlx5_0/ports/1/"
	secondFile   = `{"name":"uverbs1","mode":"0600","error":"permission denied"}`
)

// rdmaVerdicts are changes of a machine that bring a check to a verdict.
var rdmaVerdicts = []struct {
	check   string
	verdict Verdict
	subject string
	machine string
	devices []string // none: any
	general bool     // the needs do not ask for RDMA
	edits   []string
}{
	{"rdma", OK, "mlx5_1 port 1", "roce", []string{"mlx5_1"}, false, nil},
	{"rdma", Fail, "mlx5_9", "roce", []string{"mlx5_9"}, false, nil},
	{"rdma", Fail, "mlx5_9", "laptop", []string{"mlx5_9"}, false, nil},
	{"rdma", Fail, "mlx5_1 port 1", "roce", []string{"mlx5_1"}, false, []string{"state = 4: ACTIVE", "state = 1: DOWN"}},
	{"rdma", NotApplicable, "mlx5_1 port 1", "roce", nil, false, []string{"state = 4: ACTIVE", "state = 1: DOWN"}},
	{"rdma", Fail, "", "roce", nil, false, []string{"state = 4: ACTIVE", "state = 1: DOWN"}},
	{"rdma", Fail, "mlx5_1 port 1", "infiniband", []string{"mlx5_1"}, false, nil},
	{"rdma", NotApplicable, "", "laptop", nil, true, nil},
	{"rdma", Unknown, "mlx5_1", "roce", nil, true, []string{"infiniband/mlx5_{0,1}/ports",
		"infiniband/mlx5_{0,1}/doors", "infiniband/mlx5_1/ports", "infiniband/mlx5_1/doors"}},
	{"rdma-gid", OK, "mlx5_0 port 1", "roce", nil, false, nil},
	{"rdma-gid", OK, "mlx5_0 port 1", "infiniband", nil, false, nil},
	{"rdma-gid", Warn, "mlx5_0 port 1", "infiniband", nil, false, []string{"mlx5_0/ports/1/sm_lid = 0x1", "mlx5_0/ports/1/sm_lid = 0x0"}},
	{"rdma-gid", Fail, "mlx5_0 port 1", "infiniband", []string{"mlx5_0"}, false, []string{"mlx5_0/ports/1/lid = 0x2f", "mlx5_0/ports/1/lid = 0"}},
	{"rdma-gid", Warn, "mlx5_0 port 1", "roce", nil, false,
		[]string{roce0 + "gid_attrs/types/{1,3,5,7} = RoCE v2", roce0 + "gid_attrs/types/{1,3,5,7} = IB/RoCE v1"}},
	{"rdma-gid", Warn, "mlx5_0 port 1", "roce", nil, false,
		[]string{"0000:0000:0000:0000:0000:ffff:c612:", "fe80:0000:0000:0000:0000:ffff:c612:", "2001:0db8:",
			"fe80:0db8:"}},
	{"rdma-gid", Warn, "mlx5_0 port 1", "roce", nil, false,
		[]string{roce0 + "gid_attrs/ndevs/{0-7} = ens3f0np0", roce0 + "gid_attrs/ndevs/{0-3} = ens3f0np0",
			"", "/sys/devices/pci0000:4a/0000:4a:02.0/" + roce0 + "gid_attrs/ndevs/{4-7} = ens3f1np1.120"}},
	{"rdma-gid", OK, "mlx5_1 port 1", "roce", nil, false, []string{"VLAN ID\n", "VLAN\n", "| 120  |", "| none |"}},
	{"rdma-gid", Unknown, "mlx5_0 port 1", "roce", nil, false, []string{"/gids/", "/no_gids/"}},
	{"rdma-gid", Fail, "mlx5_0 port 1", "roce", []string{"mlx5_0"}, false, []string{"/gids/", "/no_gids/"}},
	{"rdma-mtu", OK, "mlx5_0 port 1", "roce", nil, false, nil},
	{"rdma-mtu", OK, "mlx5_0 port 1", "roce", nil, false, []string{"ens3f0np0/mtu = 9000", "ens3f0np0/mtu = 4192"}},
	{"rdma-mtu", Warn, "mlx5_0 port 1", "roce", nil, false, []string{"ens3f0np0/mtu = 9000", "ens3f0np0/mtu = 4191"}},
	{"rdma-mtu", OK, "rxe0 port 1", "rxe", nil, false, []string{"roce0/mtu = 1500", "roce0/mtu = 4176", "active_mtu\":1024", "active_mtu\":4096"}},
	{"rdma-mtu", OK, "rxe0 port 1", "rxe", nil, true, nil}, // not asked for, and not fast
	{"rdma-mtu", Fail, "mlx5_0 port 1", "roce", []string{"mlx5_0"}, false, []string{"ens3f0np0/mtu = 9000", "ens3f0np0/mtu = 351"}},
	{"rdma-mtu", Unknown, "mlx5_0 port 1", "roce", nil, false, []string{"ens3f0np0/mtu = 9000", "ens3f0np0/mtu = many"}},
	{"rdma-mtu", NotApplicable, "mlx5_0 port 1", "infiniband", nil, false, nil},
	{"rdma-counters", Warn, "mlx5_0 port 1", "roce", nil, false, nil},
	{"rdma-counters", OK, "mlx5_1 port 1", "roce", nil, false, nil},
	{"rdma-counters", Warn, "mlx5_0 port 1", "infiniband", nil, true, nil},
	// waiting to send is no loss
	{"rdma-counters", OK, "mlx5_0 port 1", "infiniband", nil, false, []string{"symbol_error = 9", "symbol_error = 0"}},
	{"rdma-counters", Warn, "rxe0 port 1", "rxe", nil, false, []string{"rcvd_rnr_err = 0", "rcvd_rnr_err = 7"}},
	{"rdma-flow-control", OK, "ens3f0np0", "roce", nil, false, nil},
	{"rdma-flow-control", OK, "ens3f0np0 (ECN)", "roce", nil, false, nil},
	{"rdma-flow-control", Warn, "ens3f0np0 (ECN)", "roce", nil, false, []string{"roce_np/enable/{0-7} = 1", "roce_np/enable/{0-7} = 0"}},
	{"rdma-flow-control", Warn, "ens3f1np1", "roce", nil, true, nil},
	{"rdma-flow-control", Warn, "ens3f1np1", "roce", nil, false, []string{`"rx":true,"tx":true`, `"rx":false,"tx":false`}},
	{"rdma-flow-control", OK, "ens3f0np0", "roce", nil, false, []string{`"pfc":[3],`, ``}}, // ECN alone
	{"rdma-flow-control", Unknown, "ens3f0np0", "roce", nil, false, []string{"/penstock/dcb/ens3f0np0 = {", "/penstock/dcb/ens3f0np0 ! not supported {"}},
	{"rdma-flow-control", Unknown, "ens3f1np1 (ECN)", "roce", nil, false, nil},
	{"rdma-flow-control", NotApplicable, "rxe0 port 1", "rxe", nil, false, nil},
	{"rdma-flow-control", NotApplicable, "mlx5_0 port 1", "infiniband", nil, false, nil},
	{"rdma-modules", OK, "devices", "roce", nil, false, nil},
	{"rdma-modules", Warn, "connections", "roce", nil, false, nil},
	{"rdma-modules", OK, "connections", "rxe", nil, false, nil},
	{"rdma-modules", Fail, "devices", "laptop", nil, false, nil},
	{"rdma-modules", Warn, "devices", "roce", nil, true, []string{"/sys/class/infiniband_verbs/", "/sys/class/no_verbs/"}},
	{"rdma-files", OK, "/dev/infiniband/uverbs0", "roce", nil, false, nil},
	{"rdma-files", Warn, "/dev/infiniband/uverbs1", "roce", nil, false, nil}, // the other one will do
	{"rdma-files", Fail, "/dev/infiniband/uverbs1", "roce", []string{"mlx5_1"}, false, nil},
	{"rdma-files", OK, "/dev/infiniband/uverbs1", "roce", []string{"mlx5_1"}, false, []string{secondFile, `{"name":"uverbs1","mode":"0666"}`}},
	{"rdma-files", Fail, "/dev/infiniband/uverbs0", "infiniband", nil, false, nil},
	{"rdma-files", Unknown, "", "roce", nil, false, []string{"/penstock/rdma-files = ", "/penstock/rdma-files ! "}},
	{"rdma-files", Fail, "mlx5_0", "roce", []string{"mlx5_0"}, false, []string{"uverbs{0,1}/ibdev = mlx5_{0,1}", "uverbs1/ibdev = mlx5_1"}},
	{"rdma-namespaces", OK, "", "roce", nil, false, nil},
	{"rdma-namespaces", Warn, "", "infiniband", nil, false, []string{"/sys/class/infiniband/mlx5", "/sys/class/hidden/mlx5"}},
	{"rdma-library", OK, "mlx5_0", "roce", nil, false, nil},
	{"rdma-library", Warn, "librdmacm.so.1", "roce", nil, false, nil},
	{"rdma-library", Fail, "mlx5_0", "infiniband", nil, false, nil},
	{"rdma-library", Warn, "mlx5_0", "infiniband", nil, true, nil},
	{"rdma-library", Fail, "libibverbs.so.1", "laptop", nil, false, nil},
	{"rdma-library", Unknown, "mlx5_0", "roce", nil, false,
		[]string{"drivers/mlx5_core\n/sys/devices/pci0000:4a/0000:4a:02.0/0000:4b:00.{0,1}/current_link_speed",
			"drivers/other\n/sys/devices/pci0000:4a/0000:4a:02.0/0000:4b:00.{0,1}/current_link_speed"}},
	{"rdma-library", OK, "rxe0", "rxe", nil, false, nil},
	{"rdma-library", Fail, "rxe0", "rxe", nil, false, []string{`{"name":"rxe0",`, `{"name":"rxe0","error":"open_device rxe0: permission denied",`}},
	{"rdma-library", Fail, "rxe0", "rxe", []string{"rxe0"}, false, []string{`{"name":"rxe0",`, `{"name":"rxe7",`}},
	{"rdma-library", Fail, "libibverbs.so.1", "rxe", nil, false, []string{`/penstock/verbs = {`, `/penstock/verbs = {"error":"it is of another kind",`}},
	{"rdma-mtu", OK, "mlx5_0 port 1", "infiniband", nil, false,
		[]string{"", `/penstock/verbs = {"devices":[{"name":"mlx5_0","ports":[{"id":1,"active_mtu":4096,"max_mtu":4096}]}]}`}},
	{"rdma-mtu", Warn, "mlx5_0 port 1", "infiniband", nil, false,
		[]string{"", `/penstock/verbs = {"devices":[{"name":"mlx5_0","ports":[{"id":1,"active_mtu":2048,"max_mtu":4096}]}]}`}},
	// the port did not follow
	{"rdma-mtu", Warn, "rxe0 port 1", "rxe", nil, false, []string{"roce0/mtu = 1500", "roce0/mtu = 9000"}},
	{"memlock", OK, "", "roce", nil, false, nil},
	{"memlock", Fail, "", "infiniband", nil, false, nil},
}

// What is read of a port's table is ordered by how far its addresses reach.
func TestChosenAddress(t *testing.T) {
	g := func(index int, addr, kind string, vlan int) host.GID {
		return host.GID{Index: index, Addr: addr, Type: kind, Net: "eth0", VLAN: vlan}
	}
	const v1 = "IB/RoCE v1"
	order := []host.GID{
		g(7, "::ffff:10.0.0.1", roce2, 0), g(8, "::ffff:169.254.0.1", roce2, 0), g(9, "::ffff:10.0.0.2", roce2, 100),
		g(5, "2001:db8::1", roce2, 0), g(6, "fd00::1", roce2, 0),
		g(1, "fe80::1", roce2, 0), g(2, "::ffff:10.0.0.1", v1, 0), g(0, "fe80::1", v1, 0),
	}
	table := slices.Clone(order)
	slices.SortFunc(table, func(a, b host.GID) int { return a.Index - b.Index })
	if got := chosen(&host.RDMAPort{GIDs: table}, nil); !slices.Equal(got, order) {
		t.Errorf("%+v\nexpected %+v", got, order)
	}
	// What the library chooses goes before.
	if got := chosen(&host.RDMAPort{GIDs: table}, &host.VerbsPort{GID: 5}); got[0].Index != 5 || got[1].Index != 7 {
		t.Errorf("%+v", got)
	}
	for mtu, want := range map[int]int{9000: 4096, 4192: 4096, 4191: 2048, 1500: 1024, 1119: 512, 600: 256, 352: 256,
		351: 0, 0: 0} {
		if got := pathMTU("mlx5", mtu); got != want {
			t.Errorf("interface %d: %d, expected %d", mtu, got, want)
		}
	}
}
