package cards

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	gpuhost "github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the recording of a server with an H100, changed by replacements: old, new, old, new.
func server(t *testing.T, replace ...string) *host.Facts {
	t.Helper()
	b, err := os.ReadFile("../doctor/testdata/server.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(s, replace[i]) {
			t.Fatalf("the recording has no %q", replace[i])
		}
		s = strings.ReplaceAll(s, replace[i], replace[i+1])
	}
	r, err := host.Parse(strings.NewReader(s))
	if err != nil {
		t.Fatal(err)
	}
	return host.Read(t.Context(), r)
}

const card = "0000:18:00.0"

// onBus is the host's runtime, whose device says that it is the card at an address.
type onBus struct {
	driver.Runtime
	bus    string
	broken error
}

func (r *onBus) Devices() (out []driver.Device) {
	for _, d := range r.Runtime.Devices() {
		out = append(out, &device{d, r})
	}
	return out
}

type device struct {
	driver.Device
	r *onBus
}

func (d *device) Info() driver.Info {
	f := d.Device.Info()
	f.Bus = d.r.bus
	return f
}

func (d *device) Open() (driver.Context, error) {
	if d.r.broken != nil {
		return nil, d.r.broken
	}
	return d.Device.Open()
}

func entry(name, bus string, broken error) gpu.Entry {
	return gpu.Entry{Name: name, Open: func() (*gpu.Runtime, error) {
		d, err := gpuhost.Driver(gpuhost.Options{Memory: 1 << 30})
		if err != nil {
			return nil, err
		}
		return gpu.New(&onBus{d, bus, broken})
	}}
}

func TestCards(t *testing.T) {
	r := Of(server(t))
	if r.Runtimes != nil || len(r.Cards) != 1 {
		t.Fatalf("%+v", r)
	}
	c := r.Cards[0]
	if c.Bus != card || c.Name != "NVIDIA H100 PCIe" || c.Driver != "nvidia" || c.Node != 0 || c.Window != 128<<30 ||
		c.Missing != "" || c.Integrated || c.UsedBy != nil {
		t.Errorf("%+v", c)
	}
	if want := (&Link{Lane{2.5, 16}, Lane{32, 16}, "sysfs"}); !reflect.DeepEqual(c.Link, want) {
		t.Errorf("link %+v, expected %+v", c.Link, want)
	}
	// PCI Express 5.0 x16 carries 32e9 x 16 x 128/130 bits.
	if v := c.Link.Max.BytesPerSecond(); v < 63.0e9 || v > 63.1e9 {
		t.Errorf("%v bytes/s", v)
	}
	want := []Near{
		{"0000:19:00.0", "ens1f0np0", []string{"mlx5_0"}, "Mellanox ConnectX-7", host.OneBridge, true},
		{"0000:19:00.1", "ens1f1np1", []string{"mlx5_1"}, "Mellanox ConnectX-7", host.OneBridge, true},
		{"0000:98:00.0", "ens2f0", nil, "Intel E810-C", host.System, false},
	}
	if !reflect.DeepEqual(c.Near, want) {
		t.Errorf("%+v", c.Near)
	}
}

// A device of a runtime is the card on its bus, with its link and its neighbours; without a runtime
// the card says what is missing.
func TestJoin(t *testing.T) {
	f := server(t)
	none := gpu.Entry{Name: "cuda", Open: func() (*gpu.Runtime, error) { return nil, gpu.ErrUnavailable }}
	r := Look(t.Context(), gpu.Table{none, entry("opencl", card, nil), entry("host", "", nil)}, f)
	if len(r.Runtimes) != 3 || r.NoNVML == "" && r.Runtimes[1].Devices[0].NVML == nil {
		t.Fatalf("%+v", r)
	}
	if x := r.Runtimes[0]; x.Missing == "" || len(x.Devices) != 0 || !slices.ContainsFunc(x.Get, func(s string) bool {
		return strings.Contains(s, "libcuda1")
	}) {
		t.Errorf("%+v", x)
	}
	d := r.Runtimes[1].Devices[0]
	if d.Free != 1<<30 || d.Memory != 1<<30 || d.Node != 0 || d.Link == nil || len(d.Near) != 3 || d.Error != "" {
		t.Errorf("%+v", d)
	}
	if len(d.Capabilities) != int(driver.NumCapabilities) || d.Capabilities[0] != (Capability{"mapped", true, ""}) {
		t.Errorf("%+v", d.Capabilities)
	}
	for _, c := range d.Capabilities {
		if c.OK != (c.Why == "") {
			t.Errorf("%+v", c)
		}
	}
	if c := r.Cards[0]; c.Missing != "" || c.Get != nil || !slices.Equal(c.UsedBy, []string{"opencl 0"}) {
		t.Errorf("%+v", c)
	}
	if d := r.Runtimes[2].Devices[0]; d.Bus != "" || d.Link != nil || d.Near == nil || len(d.Near) != 0 {
		t.Errorf("%+v", d)
	}
	r = Look(t.Context(), gpu.Table{none, entry("host", "", nil)}, f)
	if c := r.Cards[0]; c.Missing != "no runtime here has it" || len(c.Get) != 2 || c.UsedBy != nil {
		t.Errorf("%+v", c)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// Look reports a device that cannot be opened with the reason, and asks the others all the same.
func TestBroken(t *testing.T) {
	r := Look(t.Context(), gpu.Table{entry("cuda", card, errors.New("it is on fire")), entry("host", "", nil)},
		server(t))
	if d := r.Runtimes[0].Devices[0]; !strings.Contains(d.Error, "it is on fire") || d.Free != 0 || d.Memory != 1<<30 {
		t.Errorf("%+v", d)
	}
	if d := r.Runtimes[1].Devices[0]; d.Error != "" || d.Free == 0 {
		t.Errorf("%+v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := Look(ctx, gpu.Table{entry("host", "", nil)}, server(t)); len(r.Runtimes[0].Devices) != 0 {
		t.Error("devices were asked after the end")
	}
}

// A card's driver shows what is missing for the card.
func TestMissing(t *testing.T) {
	const line = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/driver -> " +
		"../../../../../../bus/pci/drivers/"
	for to, want := range map[string][2]string{
		"nouveau":  {"nouveau: CUDA needs NVIDIA's own", "install NVIDIA's driver"},
		"vfio-pci": {"it belongs to a virtual machine", "driverctl unset-override " + card},
		"":         {"it has no driver", "install NVIDIA's driver"},
	} {
		f := server(t, line+"nvidia", line+to)
		if to == "" {
			f = server(t, line+"nvidia", "#")
		}
		r := Look(t.Context(), gpu.Table{{Name: "cuda", Open: func() (*gpu.Runtime, error) {
			return nil, gpu.ErrUnavailable
		}}}, f)
		c := r.Cards[0]
		if !strings.Contains(c.Missing, want[0]) || len(c.Get) == 0 || !strings.Contains(c.Get[0], want[1]) {
			t.Errorf("%s: %q, %q", to, c.Missing, c.Get)
		}
		if g := r.Runtimes[0].Get; len(g) != 1 || g[0] != c.Get[0] {
			t.Errorf("%s: cuda is had by %q", to, g)
		}
	}
	// No card, and a bus that cannot be read.
	for _, x := range []struct {
		f    host.Facts
		want string
	}{{host.Facts{}, "cannot be seen"}, {host.Facts{PCI: []host.PCI{{Addr: "0000:00:1f.0"}}},
		"there is none on this machine's PCI bus"}} {
		if g := get("cuda", &x.f); len(g) != 1 || !strings.Contains(g[0], x.want) {
			t.Errorf("%q", g)
		}
		if g := get("opencl", &x.f); len(g) != 1 || !strings.Contains(g[0], "pocl-opencl-icd") {
			t.Errorf("%q", g)
		}
	}
}

func TestLane(t *testing.T) {
	for l, want := range map[Lane]string{{}: "not known", {16, 0}: "not known", {2.5, 16}: "2.5 GT/s x16",
		{64, 8}: "64 GT/s x8"} {
		if l.String() != want {
			t.Errorf("%+v is %q, expected %q", l, l, want)
		}
	}
}
