package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// ErrAbsent says that a peer is not on this machine. The error that wraps it says how to get it.
var ErrAbsent = errors.New("not on this machine")

// Peer is a program of other people, or a few that belong together.
type Peer struct {
	Name     string   // as in "penstock bench --against", and in the lab's ledger
	Packages []string // that bring it, on Debian and its kin
	Programs []string // that the package looks for
	Modules  []string // of Python
	For      string   // what it is for here
	// version is a command that makes the peer say its version, and pattern finds it in what that
	// prints.
	version []string
	pattern *regexp.Regexp
}

// All is the table of peers, in the order of their names in the report.
var All = []Peer{
	{Name: "iperf3", Packages: []string{"iperf3"}, Programs: []string{"iperf3"}, For: "TCP throughput to compare with",
		version: []string{"iperf3", "--version"}, pattern: regexp.MustCompile(`^iperf (\S+)`)},
	{Name: "rsync", Packages: []string{"rsync"}, Programs: []string{"rsync"},
		For:     "files over a network, to compare with",
		version: []string{"rsync", "--version"}, pattern: regexp.MustCompile(`^rsync +version (\S+)`)},
	{Name: "ucx", Packages: []string{"ucx-utils"}, Programs: []string{"ucx_perftest", "ucx_info"},
		For:     "UCX over TCP and shared memory, to compare with",
		version: []string{"ucx_info", "-v"}, pattern: regexp.MustCompile(`(?m)^# (?:Library v|V)ersion:? (\S+)`)},
	{Name: "fi", Packages: []string{"libfabric-bin"}, Programs: []string{"fi_pingpong", "fi_info"},
		For:     "libfabric over TCP and shared memory, to compare with",
		version: []string{"fi_info", "--version"}, pattern: regexp.MustCompile(`(?m)^libfabric: (\S+)`)},
	{Name: "openssl", Packages: []string{"openssl", "libssl-dev"}, Programs: []string{"openssl"},
		For:     "TLS over TCP, to compare with encrypted transfers",
		version: []string{"openssl", "version"}, pattern: regexp.MustCompile(`^OpenSSL (\S+)`)},
	{Name: "perftest", Packages: []string{"perftest"}, Programs: []string{"ib_write_bw", "ib_send_bw", "ib_write_lat"},
		For:     "RDMA throughput and latency, where there is an RDMA device",
		version: []string{"ib_write_bw", "--version"}, pattern: regexp.MustCompile(`(?m)^Version: (\S+)`)},
	{Name: "rping", Packages: []string{"rdmacm-utils"}, Programs: []string{"rping"}, For: "RDMA connections, where there is an RDMA device"},
	{Name: "testpmd", Packages: []string{"dpdk-dev"}, Programs: []string{"dpdk-testpmd"},
		For:     "DPDK's packet rings, to compare with",
		version: []string{"dpdk-testpmd", "-v", "-h"}, pattern: regexp.MustCompile(`RTE Version: 'DPDK ([^']+)'`)},
	{Name: "tcpreplay", Packages: []string{"tcpreplay"}, Programs: []string{"tcpreplay"},
		For:     "sends packets of a file into an interface",
		version: []string{"tcpreplay", "--version"}, pattern: regexp.MustCompile(`(?m)^tcpreplay version: (\S+)`)},
	{Name: "tshark", Packages: []string{"tshark"}, Programs: []string{"tshark"},
		For:     "reads what we captured or wrote, as packets",
		version: []string{"tshark", "--version"},
		pattern: regexp.MustCompile(`(?m)^TShark \(Wireshark\) ([0-9][0-9.]*)`)},
	{Name: "numpy", Packages: []string{"python3-numpy"}, Modules: []string{"numpy"}, For: "reads our arrays and writes arrays for us"},
	{Name: "torch", Packages: []string{"python3-torch", "python3-numpy"}, Modules: []string{"torch"}, For: "reads our tensors"},
	{Name: "pocl", Packages: []string{"pocl-opencl-icd", "ocl-icd-opencl-dev", "clinfo"}, Programs: []string{"clinfo"},
		For: "OpenCL kernels on the processor"},
	{Name: "etcd", Packages: []string{"etcd-server", "etcd-client"}, Programs: []string{"etcd", "etcdctl"},
		For:     "a metadata store to register with",
		version: []string{"etcd", "--version"}, pattern: regexp.MustCompile(`(?m)^etcd Version: (\S+)`)},
	{Name: "chromium", Packages: []string{"chromium"}, Programs: []string{"chromium"},
		For:     "shows our pages as a browser does",
		version: []string{"chromium", "--version"}, pattern: regexp.MustCompile(`(?m)^Chromium (\S+)`)},
}

// Get returns the peer of that name; that there is none is a mistake of the caller's.
func Get(name string) (*Peer, error) {
	var names []string
	for i := range All {
		if All[i].Name == name {
			return &All[i], nil
		}
		names = append(names, All[i].Name)
	}
	return nil, fmt.Errorf("peers: no peer is called %q: expected one of %s", name, strings.Join(names, ", "))
}

// Install is the command that brings the peer, for people.
func (p *Peer) Install() string { return "apt-get install " + strings.Join(p.Packages, " ") }

// Find looks up the peer's programs. The error wraps [ErrAbsent] and says how to get what is
// missing.
func (p *Peer) Find() error {
	for _, name := range p.Programs {
		if _, err := p.tool(name); err != nil {
			return err
		}
	}
	return nil
}

// tool is the path of a program of the peer.
func (p *Peer) tool(name string) (string, error) {
	path, err := sys.Program(name, strings.Join(p.Packages, " "))
	if err != nil {
		return "", fmt.Errorf("peers: %s is %w: %w, or run scripts/deps.sh", p.Name, ErrAbsent, err)
	}
	return path, nil
}

// Version asks the peer itself for its version. The error wraps [ErrAbsent] when it is not here;
// any other error means that it is here and does not work.
func (p *Peer) Version(ctx context.Context) (string, error) {
	if err := p.Find(); err != nil {
		return "", err
	}
	switch {
	case len(p.Modules) > 0:
		return moduleVersion(ctx, p)
	case p.Name == "pocl":
		return openCLVersion(ctx, p)
	case p.version == nil:
		return packageVersion(ctx, p)
	}
	path, err := p.tool(p.version[0])
	if err != nil {
		return "", err
	}
	h, err := newHome(p.Name)
	if err != nil {
		return "", err
	}
	run, err := command{args: append([]string{path}, p.version[1:]...), home: h, dir: h.dir}.start(ctx)
	if err != nil {
		return "", errors.Join(err, h.remove())
	}
	_, err = run.wait()
	if gone := h.remove(); gone != nil {
		return "", gone
	}
	// Some print it to the other stream, and some end with an error after they printed it.
	if m := p.pattern.FindSubmatch(append(run.stdout.bytes(), run.stderr.bytes()...)); m != nil {
		return string(m[1]), nil
	}
	if err == nil {
		err = run.failure(fmt.Errorf("%w: no version", ErrOutput))
	}
	return "", err
}

// packageVersion is for a peer that does not tell: what the package database says.
func packageVersion(ctx context.Context, p *Peer) (string, error) {
	query, err := sys.Program("dpkg-query", "dpkg")
	if err != nil {
		return "unknown (it does not tell)", nil
	}
	out, err := command{args: []string{query, "-W", "-f", "${Version}", p.Packages[0]}}.run(ctx)
	if err != nil {
		return "unknown (it does not tell)", nil
	}
	return strings.TrimSpace(string(out)) + " (package " + p.Packages[0] + ")", nil
}

// Report writes the table of all peers: the version that each reports, or why it cannot be used and
// how to get it.
func Report(ctx context.Context, w io.Writer) error {
	state := make([]string, len(All))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range All {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			p := &All[i]
			v, err := p.Version(ctx)
			switch {
			case errors.Is(err, ErrAbsent):
				state[i] = "absent: " + p.Install()
			case err != nil:
				state[i] = fmt.Sprintf("broken: %.160s", strings.ReplaceAll(err.Error(), "\n", " "))
			default:
				state[i] = v
			}
		})
	}
	wg.Wait()
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "peer\tversion\tfor")
	for i := range All {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", All[i].Name, state[i], All[i].For)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	return nil
}

// seconds is a duration that a tool prints as a decimal number of seconds.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
