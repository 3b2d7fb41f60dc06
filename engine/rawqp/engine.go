package rawqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// Name is the name of the engine in configurations.
const Name = "verbs"

// Errors of this engine, besides those of package engine that they wrap.
var (
	// ErrCapability says that the process may not have queue pairs of raw packets.
	ErrCapability = fmt.Errorf("verbs: CAP_NET_RAW is missing: run as root, or \"setcap cap_net_raw+ep\" on the "+
		"program: %w", engine.ErrUnavailable)
	// ErrNoRaw says that a device has no queue pairs of raw packets.
	ErrNoRaw = fmt.Errorf("verbs: no raw packet queue pairs: Ethernet ports of mlx4 and mlx5 (ConnectX-3 and later, "+
		"BlueField) have them; on any network "+
		"interface the engines xdp and afpacket do the same work: %w", engine.ErrUnavailable)
)

// Engine opens ports of RDMA cards for frames. Make it with New; any goroutine may use it.
type Engine struct {
	lib  rdmadev.Library
	tree fs.FS // of the machine's files, nil for this machine's; tests have another
	// dry is the device's count of frames for which there was no receive, and whether it has one;
	// tests have another.
	dry func(d *ibv.Device, port int) (uint64, bool)
}

// New makes an Engine. library is the file of libibverbs, "" for the one that the system has.
func New(library string) *Engine {
	return &Engine{lib: rdmadev.Library{Path: library}, dry: outOfBuffer}
}

var _ engine.Engine = (*Engine)(nil)

// Name implements engine.Engine: it is "verbs".
func (*Engine) Name() string { return Name }

func unavailable(err error) error { return fmt.Errorf("verbs: %w: %w", engine.ErrUnavailable, err) }

// Available implements engine.Engine: there is a device with queue pairs of raw packets, and this
// process may have one.
func (e *Engine) Available() error {
	c, err := e.lib.Open("", func(c *ibv.Context) error {
		attr, err := c.Attr()
		if err != nil {
			return err
		}
		var why []error
		for port := 1; port <= max(attr.Ports, 1); port++ {
			err := able(c, port)
			if err == nil {
				return nil
			}
			why = append(why, err)
		}
		return errors.Join(why...)
	})
	if err != nil {
		return unavailable(err)
	}
	return c.Close()
}

// able says why a port of a device cannot be opened: it asks for a queue pair.
func able(c *ibv.Context, port int) error {
	a, err := c.Port(port)
	if err != nil {
		return unavailable(err)
	}
	if a.Link != ibv.LinkEthernet {
		return fmt.Errorf("port %d of %s is %v, and frames are of Ethernet: set its type (mlxconfig -d PCI set "+
			"LINK_TYPE_P%d=2, then reboot): %w", port, c.Name(), a.Link, port, ErrNoRaw)
	}
	pd, err := c.AllocPD()
	if err != nil {
		return unavailable(err)
	}
	cq, err := c.CreateCQ(ibv.CQSpec{Entries: 1})
	if err != nil {
		return errors.Join(unavailable(err), pd.Close())
	}
	q, err := pd.CreateQP(ibv.QPSpec{Type: ibv.RawPacket, SendCQ: cq, RecvCQ: cq, SendWRs: 1, RecvWRs: 1, SendSGEs: 1,
		RecvSGEs: 1})
	if err != nil {
		err = refusal(c.Name(), err)
	} else {
		err = q.Close()
	}
	return errors.Join(err, cq.Close(), pd.Close())
}

// refusal says what a device's answer to the question for a queue pair means.
func refusal(device string, err error) error {
	var e *ibv.Error
	switch {
	case errors.As(err, &e) && (e.Errno == sys.EPERM || e.Errno == sys.EACCES):
		return fmt.Errorf("%w: %s: %w", ErrCapability, device, err)
	case errors.Is(err, ibv.ErrUnsupported):
		what := device
		if strings.HasPrefix(device, "rxe") {
			what += " (Soft-RoCE has none)"
		}
		return fmt.Errorf("%s: %w: %w", what, ErrNoRaw, err)
	}
	return fmt.Errorf("verbs: %s: %w: %w", device, engine.ErrUnavailable, err)
}

// Capabilities implements engine.Engine.
func (*Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{
		Frames: true, RxQueues: maxQueues, TxQueues: maxQueues,
		Rules: true, RulesIn: "software, in front of it the NIC",
		Split: true, Chains: true, Timestamps: true, HardwareTime: true,
		ZeroCopyForward: true, TxChecksum: "software", TxSegmentation: "software", ExactDrops: true,
		Memory: []mem.Kind{mem.Host, mem.Huge, mem.Device}, MemoryUse: engine.UseRegistered,
		Notes: []string{"rates and times of sending are not here: the engines xdp and afpacket have them"},
	}
}

// OpenPort implements engine.Engine. spec.Address is the name of an RDMA device (mlx5_0), of its
// network interface, or its place on the PCI bus (0000:3b:00.0); spec.Options an Options, a pointer
// to one, or nil. The error is ErrNoRaw or ErrCapability where the reason is known.
func (e *Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a, o, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	if spec.Name == "" {
		spec.Name = spec.Address
	}
	d, netdev, err := e.find(a.Where, &o)
	if err != nil {
		return nil, err
	}
	p, err := open(e, d, netdev, spec, o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// find is the open device of an address; it sets the port.
func (e *Engine) find(address string, o *Options) (_ *ibv.Context, netdev string, err error) {
	all, err := e.lib.Devices()
	if err != nil {
		return nil, "", unavailable(err)
	}
	name := ""
	if slices.ContainsFunc(all, func(d *ibv.Device) bool { return d.Name() == address }) {
		name = address
	}
	c, err := e.lib.Open(name, func(c *ibv.Context) (err error) {
		netdev, err = has(c, address, o)
		return err
	})
	switch {
	case err == nil:
		return c, netdev, nil
	case name != "":
		return nil, "", unavailable(err)
	}
	return nil, "", fmt.Errorf("verbs: no RDMA device is, or has, %q: there is %w; other network interfaces: the "+
		"engines xdp and afpacket: %w", address, err, engine.ErrNotFound)
}

// has is the network interface of an address at a device, and sets the port.
func has(c *ibv.Context, address string, o *Options) (netdev string, err error) {
	at, _ := filepath.EvalSymlinks(filepath.Join(c.Device().Path(), "device"))
	named := c.Name() == address || at != "" && filepath.Base(at) == address
	attr, err := c.Attr()
	if err != nil {
		return "", err
	}
	var have []string
	for n := 1; n <= attr.Ports; n++ {
		if o.Port != 0 && o.Port != n {
			continue
		}
		netdev := ""
		if gids, err := c.GIDs(n); err == nil {
			for _, g := range gids {
				if g.Netdev != "" && g.VLAN == 0 && (netdev == "" || g.Netdev == address) {
					netdev = g.Netdev
				}
			}
		}
		if named || netdev == address && address != "" {
			o.Port = n
			return netdev, nil
		}
		have = append(have, fmt.Sprintf("port %d: %s", n, cmp.Or(netdev, "no network interface")))
	}
	return "", errors.New(strings.Join(have, ", "))
}

// outOfBuffer reads the count from sysfs.
func outOfBuffer(d *ibv.Device, port int) (uint64, bool) {
	b, err := os.ReadFile(filepath.Join(d.Path(), "ports", strconv.Itoa(port), "hw_counters", "out_of_buffer"))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
