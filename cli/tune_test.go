package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/host/tune"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

func TestTuneUsage(t *testing.T) {
	for _, x := range []struct {
		args string
		want string
	}{
		{"tune dram", "expected driver, host, nic"},
		{"tune driver a b", "at most one card"},
		{"tune driver --undo", "which card?"},
		{"tune driver --driver vfio-pci", "which card?"},
		{"tune driver a", "which driver?"},
		{"tune driver a --driver vfio-pci --undo", "does not go with --undo"},
		{"tune driver a --apply --undo", "exclude each other"},
		{"tune driver a --driver vfio-pci --apply --force", "does not override"},
		{"tune nic eth0 --rps 3-1", "--rps"},
		{"tune nic eth0 --xps x", "or none"},
		{"tune nic eth0 --undo --rps 1", "leave out --undo"},
		{"tune host eth0", "unexpected argument"},
		{"tune host --apply --undo", "exclude each other"},
		{"tune host --force", "needs --undo"},
		{"tune host --undo --governor performance", "does not go with --undo"},
		{"tune host --buffers x", "--buffers x"},
		{"tune host --cores x", "--cores"},
		{"tune host --sysctl net.core.rmem_max", "expected NAME=VALUE"},
		{"tune host --sysctl net.core.rmem_max=1 --sysctl net.core.rmem_max=2", "each name once"},
		{"tune host --hugepages 1GiB@x", "node"},
		{"tune nic eth0 --apply --undo", "exclude each other"},
		{"tune nic eth0 --force", "needs --undo"},
		{"tune nic --apply", "which interface?"},
		{"tune nic --queues 4", "name IF"},
		{"tune nic eth0 --undo --mtu 9000", "leave out --undo"},
		{"tune nic eth0 --hugepages 64M", "expected a number of bytes"},
		{"tune nic eth0 --hugepages 64MiB/x", "size of a page"},
		{"tune nic a b", "at most one interface"},
	} {
		_, errOut, status := penstock(t, strings.Fields(x.args)...)
		if status != exitUsage || !strings.Contains(errOut, x.want) {
			t.Errorf("%s: status %d: %s", x.args, status, errOut)
		}
	}
	dir := t.TempDir()
	if _, errOut, status := penstock(t, "tune", "nic", "no-such-nic"); status != exitNotFound ||
		!strings.Contains(errOut, `"no-such-nic"`) {
		t.Errorf("status %d: %s", status, errOut)
	}
	if _, errOut, status := penstock(t, "tune", "nic", "lo", "--undo", "--state", dir); status != exitNotFound ||
		!strings.Contains(errOut, "nothing to undo") {
		t.Errorf("status %d: %s", status, errOut)
	}
	for args, want := range map[string]string{"ffff:00:00.0 --driver vfio-pci": "no PCI device ffff:00:00.0",
		"no-such-nic --driver vfio-pci": `no interface "no-such-nic"`, "ffff:00:00.0 --undo": "no PCI device"} {
		if _, errOut, status := penstock(t, strings.Fields("tune driver --state "+dir+" "+
			args)...); status != exitNotFound || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d: %s", args, status, errOut)
		}
	}
	if _, errOut, status := penstock(t, "tune", "driver", "lo", "--driver", "vfio-pci"); status != exitFailure ||
		!strings.Contains(errOut, "not of a PCI device") {
		t.Errorf("status %d: %s", status, errOut)
	}
	var cards []tune.Card
	if out, errOut, status := penstock(t, "tune", "driver", "--json"); status != exitOK ||
		json.Unmarshal([]byte(out), &cards) != nil || cards == nil {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	if out, errOut, status := penstock(t, "tune", "driver"); status != exitOK || !strings.Contains(out, "address") &&
		!strings.Contains(out, "no network card") {
		t.Errorf("status %d: %s%s", status, errOut, out)
	}
	if _, errOut, status := penstock(t, "tune", "nic", "lo", "--skip", "gor"); status != exitFailure ||
		!strings.Contains(errOut, `no step is called "gor"`) {
		t.Errorf("status %d: %s", status, errOut)
	}
	if _, errOut, status := penstock(t, "tune", "host", "--sysctl", "kernel.core_pattern=1"); status != exitFailure ||
		!strings.Contains(errOut, "kernel.core_pattern") {
		t.Errorf("status %d: %s", status, errOut)
	}
	if _, errOut, status := penstock(t, "tune", "host", "--undo", "--state", dir); status != exitNotFound ||
		!strings.Contains(errOut, "nothing to undo for host") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

// The same in a host with an interface: the plan as JSON, applied, undone, and refused to a user
// without the right.
func TestTuneNic(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{Queues: 4}})
	h := n.Hosts[0]
	state := filepath.Join(t.TempDir(), "state")
	run := func(wrap []string, args ...string) (string, int) {
		t.Helper()
		argv := append(append(slices.Clone(wrap), os.Args[0]), args...)
		cmd := h.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), mainEnv+"=1")
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		err := h.Run(cmd)
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return out.String(), cmd.ProcessState.ExitCode()
	}
	var all []tune.Interface
	out, status := run(nil, "tune", "nic", "--json")
	if err := json.Unmarshal([]byte(out), &all); err != nil || status != 0 || len(all) != 1 || all[0].Name != "eth0" ||
		all[0].Driver != "veth" || all[0].Queues != 4 {
		t.Errorf("%d, %v: %s", status, err, out)
	}
	goals := []string{"tune", "nic", "eth0", "--queues", "2", "--mtu", "3000", "--skip", "gro", "--state", state}
	var p tune.Plan
	out, status = run(nil, append(goals, "--json")...)
	if err := json.Unmarshal([]byte(out), &p); err != nil || status != 0 || len(p.Changes()) != 2 ||
		p.Steps[0].Wanted != "3000" {
		t.Errorf("%d, %v: %s", status, err, out)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("a plan left a record")
	}
	if prog, err := testenv.Tool("setpriv", "util-linux"); err == nil {
		less := []string{prog, "--bounding-set=-net_admin", "--inh-caps=-net_admin"}
		out, status = run(less, goals...)
		if status != 0 || !strings.Contains(out, "MISSING: CAP_NET_ADMIN") ||
			!strings.Contains(out, "Missing: CAP_NET_ADMIN, for: MTU, queues.") {
			t.Errorf("%d: %s", status, out)
		}
		if out, status = run(less, append(goals, "--apply")...); status != exitNotPermitted ||
			!strings.Contains(out, "nothing was changed: MTU takes CAP_NET_ADMIN") {
			t.Errorf("%d: %s", status, out)
		}
	} else {
		t.Errorf("%v", err)
	}
	if out, status = run(nil, append(goals, "--apply")...); status != 0 ||
		!strings.Contains(out, "MTU: changed, from 1500 to 3000") || !strings.Contains(out, "--undo") {
		t.Errorf("%d: %s", status, out)
	}
	if out, status = run(nil, append(goals, "--apply")...); status != 0 || out != "eth0: nothing to change\n" {
		t.Errorf("%d: %s", status, out)
	}
	var res struct {
		tune.Result
		OK bool
	}
	out, status = run(nil, "tune", "nic", "eth0", "--undo", "--json", "--state", state)
	if err := json.Unmarshal([]byte(out), &res); err != nil || status != 0 || !res.OK || len(res.Outcomes) != 2 ||
		res.Outcomes[1].To != "1500" {
		t.Errorf("%d, %v: %s", status, err, out)
	}
}

// A session on a pair of virtual interfaces, in namespaces of its own.
func TestRecordingTune(t *testing.T) {
	r := recordMachine(t)
	write(t, filepath.Join(r.dir, "session.sh"), []byte(`
ip link add eth0 numrxqueues 4 numtxqueues 4 type veth peer name peer0 numrxqueues 4 numtxqueues 4 || exit 77
ip link del dev ifb0 2>/dev/null; ip link del dev ifb1 2>/dev/null
ethtool -K eth0 gro on && ip link set eth0 up && ip link set peer0 up || exit 77
mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /var/lib || exit 77
run() { echo "$ penstock $*"; "$PENSTOCK" "$@"; s=$?; [ $s = 0 ] || echo "# exit status $s"; }
echo "$ penstock tune nic"
"$PENSTOCK" tune nic | grep -v -e ifb
run tune nic eth0 --queues 2 --mtu 9000 --busy-poll --skip isolation,governor
run tune nic eth0 --queues 2 --mtu 9000 --busy-poll --apply
echo "# somebody changes one of them"
echo "$ ip link set eth0 mtu 4000"
ip link set eth0 mtu 4000
run tune nic eth0 --undo
run tune nic eth0 --undo --force
run tune nic eth0 --queues 5
`))
	p := r.startSpec(proc.Spec{Path: "unshare", Args: []string{"-n", "-m", "sh", "session.sh"},
		Env: []string{"PENSTOCK=" + r.bin}})
	e, err := p.Wait(limit(t))
	if err != nil || e.Code == 77 || strings.Contains(p.Output(), "unshare failed") {
		testenv.Missing(t, "network namespaces", fmt.Errorf("%v, %v: %s", e, err, p.Output()))
	}
	r.show("", p.Output())
	r.finish("tune")
}

// The host's part, with parameters of the kernel that belong to a network namespace.
func TestTuneHost(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{Queues: 2}})
	h := n.Hosts[0]
	state := filepath.Join(t.TempDir(), "state")
	run := func(args ...string) (string, int) {
		t.Helper()
		cmd := h.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), mainEnv+"=1")
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		err := h.Run(cmd)
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return out.String(), cmd.ProcessState.ExitCode()
	}
	goals := []string{"tune", "host", "--sysctl", "net.ipv4.udp_rmem_min=16384", "--skip",
		"buffers,budget,backlog,numa-balancing,governor", "--state", state}
	out, status := run(goals...)
	if status != 0 || !strings.HasPrefix(out, "host\n") ||
		!strings.Contains(out, "sysctl -w net.ipv4.udp_rmem_min=16384") ||
		!strings.Contains(out, "Nothing was changed") {
		t.Errorf("%d: %s", status, out)
	}
	var p tune.Plan
	out, _ = run(append(goals, "--json")...)
	if err := json.Unmarshal([]byte(out), &p); err != nil || len(p.Steps) != 1 || p.Steps[0].Now != "4096" {
		t.Errorf("%v: %s", err, out)
	}
	if out, status = run(append(goals, "--apply")...); status != 0 || !strings.Contains(out,
		"net.ipv4.udp_rmem_min: changed, from 4096 to 16384") || !strings.Contains(out, "penstock tune host --undo") {
		t.Errorf("%d: %s", status, out)
	}
	if out, status = run(append(goals, "--apply")...); status != 0 || out != "host: nothing to change\n" {
		t.Errorf("%d: %s", status, out)
	}
	if out, status = run("tune", "host", "--undo", "--state", state); status != 0 ||
		!strings.Contains(out, "restored, from 16384 to 4096") {
		t.Errorf("%d: %s", status, out)
	}
	// RPS and XPS are of the interface.
	out, status = run("tune", "nic", "eth0", "--rps", "0-1", "--xps", "none", "--skip", "gro", "--json")
	p = tune.Plan{}
	if err := json.Unmarshal([]byte(out), &p); err != nil || status != 0 || len(p.Changes()) != 2 ||
		p.Changes()[1].Setting != "rps 1" || p.Changes()[1].Wanted != "0-1" {
		t.Errorf("%d, %v: %s", status, err, out)
	}
}
