package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/sys"
)

// Files of what the kernel does not tell by one.
const (
	ethtoolDir = "penstock/ethtool"
	clockFile  = "penstock/clock"
	smiFile    = "penstock/nvidia-smi"
	dcbDir     = "penstock/dcb"
	filesFile  = "penstock/rdma-files"
)

// smiLimit is how long nvidia-smi may take. It wakes up idle GPUs, which takes seconds.
const smiLimit = 20 * time.Second

// Live is this machine, in the network namespace of the calling thread: what is below / and, below
// penstock/, what ethtool, the kernel's clock and nvidia-smi say, and what sources add. nvidia-smi
// runs only where NVIDIA's driver is loaded.
func Live(ctx context.Context, sources ...Source) fs.FS {
	return live{ctx, os.DirFS("/").(dirFS), "nvidia-smi", sources}
}

// Source makes a file below penstock/ that this package has no means to make.
type Source struct {
	Name string // such as VerbsFile
	Ask  func(context.Context) ([]byte, error)
}

// VerbsFile is what libibverbs says of RDMA devices, a VerbsAnswer as JSON.
const VerbsFile = "penstock/verbs"

type dirFS interface {
	fs.FS
	fs.ReadDirFS
	fs.ReadLinkFS
	fs.StatFS
}

type live struct {
	ctx context.Context
	dirFS
	smi     string
	sources []Source
}

// Open is a file of the machine, or one made on the spot.
func (l live) Open(name string) (fs.File, error) {
	if !strings.HasPrefix(name, "penstock/") {
		return l.dirFS.Open(name)
	}
	b, err := l.ask(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &file{Reader: bytes.NewReader(b), name: path.Base(name), size: int64(len(b))}, nil
}

func (l live) ask(name string) ([]byte, error) {
	switch {
	case name == clockFile:
		s, err := sys.Clock()
		if err != nil {
			return nil, err
		}
		// The bound of the error grows by the second; what matters is its size.
		return json.Marshal(TimeSync{s.Synchronised, s.MaxError})
	case name == smiFile:
		if _, err := l.Stat("proc/driver/nvidia/version"); err != nil {
			return nil, errors.New("NVIDIA's driver is not loaded")
		}
		return l.askSMI()
	case path.Dir(name) == ethtoolDir:
		e, err := askEthtool(path.Base(name))
		if err != nil {
			return nil, err
		}
		return json.Marshal(e)
	case path.Dir(name) == dcbDir:
		d, err := askDCB(path.Base(name))
		if err != nil {
			return nil, err
		}
		return json.Marshal(d)
	case name == filesFile:
		return json.Marshal(l.deviceFiles())
	}
	for _, s := range l.sources {
		if s.Name == name {
			return s.Ask(l.ctx)
		}
	}
	return nil, fs.ErrNotExist
}

// askDCB asks the driver of an interface for its priority flow control.
func askDCB(name string) (*DCB, error) {
	d, err := ethtool.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	x, err := d.DCB()
	if err != nil {
		return nil, err
	}
	out := &DCB{PFCKnown: x.HasPFC, DSCP: x.DSCP}
	for p, on := range x.PFC {
		if on {
			out.PFC = append(out.PFC, p)
		}
		out.Sent += x.Sent[p]
		out.Received += x.Received[p]
	}
	return out, nil
}

// deviceFiles tries to open the files by which programs reach RDMA devices, as libibverbs does.
// That changes nothing.
func (l live) deviceFiles() []DeviceFile {
	var names []string
	all, _ := l.ReadDir("sys/class/infiniband_verbs") // the caller knows that it is there
	for _, e := range all {
		if strings.HasPrefix(e.Name(), "uverbs") && plainName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	if _, err := l.Stat("sys/class/misc/rdma_cm"); err == nil {
		names = append(names, "rdma_cm")
	}
	out := []DeviceFile{}
	for _, n := range names {
		d := DeviceFile{Name: n}
		name := "/dev/infiniband/" + n
		info, err := os.Stat(name)
		if err == nil {
			d.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
			if info.Mode()&fs.ModeCharDevice == 0 {
				err = errors.New("the file is no character device")
			}
		}
		if err == nil {
			var f *os.File
			if f, err = os.OpenFile(name, os.O_RDWR, 0); err == nil {
				f.Close()
			}
		}
		if err != nil {
			d.Error = reason(err)
		}
		out = append(out, d)
	}
	return out
}

func (l live) askSMI() ([]byte, error) {
	ctx, cancel := context.WithTimeout(l.ctx, smiLimit)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, l.smi, "--query-gpu="+strings.Join(smiQuery, ","), "--format=csv,noheader,nounits")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errOut, time.Second
	if err := cmd.Run(); err != nil {
		said := strings.Join(strings.Fields(out.String()+" "+errOut.String()), " ")
		return nil, fmt.Errorf("nvidia-smi: %w: %.200s", err, said)
	}
	return out.Bytes(), nil
}

// counters matches the names of counters of loss, damage or pauses.
var counters = regexp.MustCompile(`(?i)pause|discard|drop|out_of_buffer|missed|no_buf|no_desc|nobuf|ecn|cnp|crc|fifo|oversize|wqe_err|cqe_err|alloc_fail|pfc`)

// mostCounters is how many of them are kept: the queues of some cards have a dozen each.
const mostCounters = 256

// askEthtool asks the driver of an interface. It fails only if there is no such interface.
func askEthtool(name string) (*Ethtool, error) {
	d, err := ethtool.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	e := &Ethtool{Clock: -1, Features: map[string]string{}, Counters: map[string]uint64{}, Errors: map[string]string{}}
	failed := func(what string, err error) bool {
		if err != nil && !errors.Is(err, ethtool.ErrNotSupported) {
			e.Errors[what] = err.Error()
		}
		return err != nil
	}
	if x, err := d.Driver(); !failed("driver", err) {
		e.Driver = x.Name
	}
	if x, err := d.Channels(); !failed("queues", err) {
		e.RxQueues, e.MaxQueues = x.RxQueues(), max(x.MaxCombined, x.MaxRx)
	}
	if x, err := d.Rings(); !failed("rings", err) {
		e.RxRing, e.MaxRxRing = x.Rx, x.MaxRx
	}
	if x, err := d.Pause(); !failed("pause frames", err) {
		e.Pause = &Pause{x.Rx, x.Tx}
	}
	all, err := d.Features()
	failed("offloads", err)
	for _, x := range all {
		switch x.Name {
		case ethtool.FeatureGRO, ethtool.FeatureHardGRO, ethtool.FeatureLRO, ethtool.FeatureNtuple,
			ethtool.FeatureRxChecksum, ethtool.FeatureRxVLAN:
			v := "off"
			if x.Active {
				v = "on"
			}
			if x.Fixed {
				v += " [fixed]"
			}
			e.Features[x.Name] = v
		}
	}
	if x, err := d.Timestamps(); !failed("timestamps", err) {
		e.HardwareRx, e.StampsAll, e.Clock = x.HardwareRx, x.StampsAll(), x.Clock
	}
	if x, err := d.Link(); !failed("link", err) {
		e.XDPMode = x.XDPMode
		if y, err := ethtool.XDPOf(x.Index); !failed("XDP", err) {
			e.XDP, e.XDPKnown = y.Features.String(), true
		}
	}
	if x, err := d.Counters(); !failed("counters", err) {
		keep(e.Counters, x)
	}
	return e, nil
}

// keep takes over the counters that matter and are not 0, the shortest names first: those are of
// the whole card.
func keep(to, from map[string]uint64) {
	var names []string
	for n, v := range from {
		if v != 0 && counters.MatchString(n) {
			names = append(names, n)
		}
	}
	sortByLength(names)
	for _, n := range names[:min(len(names), mostCounters)] {
		to[n] = from[n]
	}
}
