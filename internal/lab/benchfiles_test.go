package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/cli"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
)

// penstockEnv makes this program the command penstock.
const penstockEnv = "PENSTOCK_LAB_IS_PENSTOCK"

// penstockMain runs the command penstock, if that is what this process is, and ends.
func penstockMain() {
	if os.Getenv(penstockEnv) != "" {
		os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
}

const (
	smallBytes = 4096
	linkRate   = 1e9 // bits per second
	penstockAt = "7070"
	rsyncAt    = "8730"
	iperf3At   = "5201"
)

// fileRow is a row: two commands between a client and a server on a link. In their words ADDR is
// the server of penstock, RSYNC that of rsync, SMALL and LARGE are the directories of the files,
// and OUT is where the copy goes.
type fileRow struct {
	name         string
	link         netns.LinkSpec
	serves, from string // directories: what is served, and what OUT is to be like
	out          string
	ours, theirs string // theirs "": iperf3
	target, goal float64
}

var (
	farLink   = netns.LinkSpec{Delay: 10 * time.Millisecond, Rate: linkRate, Queue: 4 << 20, Seed: 1}
	lossyLink = netns.LinkSpec{Delay: 10 * time.Millisecond, Rate: linkRate, Queue: 4 << 20, Seed: 1, Loss: 0.01}
	fileRows  = []fileRow{
		{"mirror", netns.LinkSpec{}, "SMALL", "SMALL", "MEMORY/out", "mirror ADDR OUT", "rsync -rt --fsync RSYNC/ OUT", 1, 0},
		{"mirror-far", farLink, "SMALL", "SMALL", "MEMORY/out", "mirror ADDR OUT", "rsync -rt --fsync RSYNC/ OUT", 0.5, 0},
		{"put-far", farLink, "MEMORY/in", "SMALL", "MEMORY/in/small", "put SMALL ADDR", "rsync -rt --fsync SMALL RSYNC/", 0.5, 0},
		{"lossy", lossyLink, "LARGE", "LARGE", "MEMORY/out", "get ADDR/large.bin -o OUT/large.bin", "", 0.95, 0},
		{"link", farLink, "LARGE", "LARGE", "MEMORY/out", "get ADDR/large.bin -o OUT/large.bin", "rsync -rt --fsync RSYNC/ OUT", 1, 0.93 * linkRate / 8e9},
		{"loopback", netns.LinkSpec{}, "LARGE", "LARGE", "DISK/out", "get ADDR/large.bin -o OUT/large.bin",
			"cp LARGE/large.bin OUT/ && sync OUT/large.bin", 1, 0},
	}
)

func fileRowNames() (names []string) {
	for _, r := range fileRows {
		names = append(names, r.name)
	}
	return names
}

// filesBench compares whole commands for files with those of other programs.
type filesBench struct {
	bench.Conditions
	rows     []string
	files    int    // of smallBytes
	size     uint64 // bytes of the large file
	pairs    int
	penstock string // the program; "": this one
	disk     string // a directory on a disk

	memory  string      // a directory on tmpfs, with the files
	client  *netns.Host // nil: no hosts, this machine
	server  *netns.Host
	addr    string // of the server
	running []*exec.Cmd
}

// Mirror, put and get move files beside rsync, iperf3 and cp, as docs/measurements/files.md says.
// By itself the test runs small; behind -- it takes the flags of benchFiles, and prints what it
// measures:
//
//	go test -c -o bin/files ./internal/lab
//	bin/files -test.run BenchFiles -- --row mirror-far
func TestBenchFiles(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "rsync")
	testpeers.Need(t, "iperf3")
	netns.New(t, netns.Topology{Link: netns.LinkSpec{Delay: time.Millisecond}}) // or it says what is missing
	if args := flag.Args(); len(args) > 0 {
		if err := benchFiles(t.Context(), args, os.Stdout); err != nil {
			t.Fatal(err)
		}
		return
	}
	file := filepath.Join(t.TempDir(), "files.json")
	err := benchFiles(t.Context(), []string{"--quick", "--quiet", "--files", "40", "--size", "1MiB", "--output", file},
		t.Output())
	r, rerr := paired.ReadFile(file)
	if err != nil || rerr != nil || len(r.Rows) != len(fileRows) {
		t.Fatal(err, rerr)
	}
	for _, x := range r.Rows {
		if want := uint64(1 << 20); x.Ours.Verified != want && x.Ours.Verified != 40*smallBytes || len(x.Theirs) != 1 ||
			x.Theirs[0].Error != "" {
			t.Errorf("%s: %d bytes verified, %+v", x.Name, x.Ours.Verified, x.Theirs)
		}
	}
}

func TestBenchFilesRefusals(t *testing.T) {
	for args, want := range map[string]string{"--row dance": `--row "dance"`, "--size much": "much",
		"eth0": "unexpected argument"} {
		if err := benchFiles(t.Context(), strings.Fields(args), io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %s", args, err, want)
		}
	}
}

// benchFiles measures rows. It takes root.
func benchFiles(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("bench files", flag.ContinueOnError)
	var result bench.Output
	b := filesBench{rows: fileRowNames()}
	result.Flags(f)
	f.Func("row", "of "+strings.Join(b.rows, ", ")+" (default all)", func(s string) error {
		b.rows = strings.Split(s, ",")
		return nil
	})
	f.IntVar(&b.files, "files", 0, "small files of mirror and put (default 20000)")
	size := f.String("size", "", "`SIZE` of the large file (default 1536MiB)")
	f.IntVar(&b.pairs, "pairs", 5, "interleaved pairs of each row")
	f.StringVar(&b.penstock, "penstock", "", "`FILE` of the command penstock (default: of this source)")
	f.StringVar(&b.disk, "disk", os.TempDir(), "a `DIR` on a disk, for loopback")
	memory := f.String("memory", "/dev/shm", "a `DIR` on tmpfs")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("bench files: unexpected argument %q", f.Arg(0))
	}
	if b.Conditions, err = result.Conditions(os.Stderr); err != nil {
		return err
	}
	for _, r := range b.rows {
		if !slices.Contains(fileRowNames(), r) {
			return fmt.Errorf("--row %q: expected one of %s", r, strings.Join(fileRowNames(), ", "))
		}
	}
	if *size != "" {
		n, err := config.ParseSize(strings.TrimSpace(*size))
		if err != nil {
			return err
		}
		b.size = uint64(n)
	}
	if result.Quick {
		b.files, b.size, b.pairs = cmp.Or(b.files, 200), cmp.Or(b.size, 8<<20), 1
	}
	b.files, b.size = cmp.Or(b.files, 20000), cmp.Or(b.size, 1536<<20)
	if b.memory, err = os.MkdirTemp(*memory, "penstock-files"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.memory)) }()
	if b.disk, err = os.MkdirTemp(b.disk, "penstock-files"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.disk)) }()
	r, err := b.run(ctx)
	return result.Print(out, r, err)
}

func (b *filesBench) run(ctx context.Context) (*paired.Report, error) {
	r := b.Begin("files",
		"whole commands, from their start to their end, in turns; files come from tmpfs, and are compared byte by "+
			"byte afterwards; nobody encrypts",
		fmt.Sprintf("far: 20 ms of round trip, %g Gb/s, a queue of 4 MiB; small files: %d of %d bytes in 50 "+
			"directories; the large one: %d bytes", linkRate/1e9, b.files, smallBytes, b.size),
		"rsync is a daemon and syncs what it writes; iperf3 has 4 connections, and its figure is that of its receiver")
	r.Method.Pairs = b.pairs
	for _, name := range []string{"rsync", "iperf3"} {
		p, err := peers.Get(name)
		if err != nil {
			return nil, err
		}
		v, err := p.Version(ctx)
		if err != nil {
			return nil, err
		}
		r.Method.Peers = append(r.Method.Peers, paired.Peer{Name: name, Version: v})
	}
	if err := b.make(); err != nil {
		return nil, err
	}
	return r.End(func() error {
		for i := range fileRows {
			if row := &fileRows[i]; slices.Contains(b.rows, row.name) {
				b.Progress.Say("%s", row.name)
				if err := b.row(ctx, r, row); err != nil {
					return err
				}
			}
		}
		return nil
	}())
}

// make makes the files that are served.
func (b *filesBench) make() error {
	random := rand.NewChaCha8([32]byte{1})
	write := func(p string, n uint64) error {
		f, err := os.Create(p)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, random, int64(n))
		return errors.Join(err, f.Close())
	}
	for i := range b.files {
		dir := filepath.Join(b.memory, "small", fmt.Sprint("d", i%50))
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		if err := write(filepath.Join(dir, fmt.Sprintf("f%05d.bin", i)), smallBytes); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(b.memory, "large"), 0o777); err != nil {
		return err
	}
	return write(filepath.Join(b.memory, "large", "large.bin"), b.size)
}

// row measures one row between hosts of its own.
func (b *filesBench) row(ctx context.Context, r *bench.Suite, row *fileRow) (err error) {
	b.client, b.server, b.addr = nil, nil, "127.0.0.1"
	if row.name != "loopback" {
		n, nerr := netns.Open(netns.Topology{Link: row.link})
		if nerr != nil {
			return nerr
		}
		defer func() { err = errors.Join(err, n.Close()) }()
		b.client, b.server, b.addr = n.Hosts[0], n.Hosts[1], n.Hosts[1].Link().IPv4.String()
	}
	defer b.stop()
	if err := b.serve(ctx, row); err != nil {
		return err
	}
	p := paired.Plan{Name: row.name, Unit: paired.Milliseconds, Pairs: b.pairs, Margin: 0.05, Target: row.target,
		Goal: row.goal}
	if row.serves == "LARGE" {
		p.Unit = paired.GBs
	}
	p.Ours = paired.Contender{Name: "penstock", Command: "penstock " + row.ours,
		Run: func(context.Context) (paired.Sample, error) {
			return b.copy(row, b.penstockCommand(row, row.ours))
		}}
	switch {
	case row.theirs == "":
		p.Theirs = []paired.Contender{{Name: "iperf3 -P 4", Unchecked: "iperf3 does not look at them", Run: b.iperf3}}
	default:
		name, _, _ := strings.Cut(row.theirs, " ")
		p.Theirs = []paired.Contender{{Name: name, Command: row.theirs,
			Run: func(context.Context) (paired.Sample, error) {
				return b.copy(row, exec.Command("sh", "-c", b.words(row, row.theirs)))
			}}}
	}
	return r.Measure(ctx, p, nil)
}

// words are those of a row, as they are meant.
func (b *filesBench) words(row *fileRow, s string) string {
	s = strings.ReplaceAll(s, "OUT", row.out)
	return strings.NewReplacer("SMALL", b.memory+"/small", "LARGE", b.memory+"/large", "MEMORY", b.memory, "DISK",
		b.disk,
		"ADDR", net.JoinHostPort(b.addr, penstockAt), "RSYNC",
		"rsync://"+net.JoinHostPort(b.addr, rsyncAt)+"/served").Replace(s)
}

func (b *filesBench) penstockCommand(row *fileRow, s string) *exec.Cmd {
	args := strings.Fields(b.words(row, s) + " --insecure --identity none --path tcp -q")
	cmd := exec.Command(cmp.Or(b.penstock, "/proc/self/exe"), args...)
	cmd.Env = append(os.Environ(), penstockEnv+"=1")
	return cmd
}

// copy runs a command, which makes a copy, compares it and removes it.
func (b *filesBench) copy(row *fileRow, cmd *exec.Cmd) (s paired.Sample, err error) {
	out := b.words(row, row.out)
	if err := os.MkdirAll(filepath.Dir(out), 0o777); err != nil {
		return s, err
	}
	if row.serves == "LARGE" {
		err = os.Mkdir(out, 0o777)
	}
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
	began := time.Now()
	if err := finish(b.client, cmd); err != nil {
		return s, err
	}
	took := time.Since(began)
	if s.Verified, err = same(b.words(row, row.from), out); err != nil {
		return s, err
	}
	if s.Value = bench.GBps(s.Verified, took); row.serves != "LARGE" {
		s.Value = float64(took) / float64(time.Millisecond)
	}
	return s, nil
}

// start starts a command in a host; nil: this machine.
func start(h *netns.Host, cmd *exec.Cmd) error {
	if h == nil {
		return cmd.Start()
	}
	return h.Start(cmd)
}

// finish runs a command to its end.
func finish(h *netns.Host, cmd *exec.Cmd) error {
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err := start(h, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, text.Bytes())
	}
	return nil
}

// serve starts the servers of a row, and waits until they answer.
func (b *filesBench) serve(ctx context.Context, row *fileRow) error {
	dir := b.words(row, row.serves)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	// What one run has put is gone before the next: a server that looks for files meanwhile would
	// take that for files which are replaced.
	servers := []*exec.Cmd{b.penstockCommand(row, "serve "+dir+" --listen ADDR --writable --rescan 1h")}
	answers := []func() error{func() error {
		return finish(b.client, b.penstockCommand(row, "mirror ADDR MEMORY/none --dry-run"))
	}}
	if b.server != nil {
		conf := filepath.Join(b.memory, "rsyncd.conf")
		if err := os.WriteFile(conf, []byte("use chroot = no\nuid = 0\ngid = 0\n[served]\npath = "+dir+
			"\nread only = no\n"), 0o666); err != nil {
			return err
		}
		servers = append(servers, exec.Command("rsync", "--daemon", "--no-detach", "--config", conf, "--port", rsyncAt),
			exec.Command("iperf3", "-s", "-p", iperf3At))
		for _, port := range []string{rsyncAt, iperf3At} {
			answers = append(answers, func() error {
				c, err := b.client.Dial(ctx, "tcp", net.JoinHostPort(b.addr, port))
				if err == nil {
					c.Close()
				}
				return err
			})
		}
	}
	for _, cmd := range servers {
		if err := start(b.server, cmd); err != nil {
			return err
		}
		b.running = append(b.running, cmd)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, answer := range answers {
		for err := answer(); err != nil; err = answer() {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return err
			}
		}
	}
	return nil
}

// stop ends the servers.
func (b *filesBench) stop() {
	for _, cmd := range b.running {
		cmd.Process.Kill()
		cmd.Wait()
	}
	b.running = nil
}

// iperf3 brings as many bytes as the large file has, in the same direction.
func (b *filesBench) iperf3(ctx context.Context) (s paired.Sample, err error) {
	out, err := b.client.Output(ctx, "iperf3", "-c", b.addr, "-p", iperf3At, "-R", "-P", "4", "-n",
		strconv.FormatUint(b.size, 10), "-J")
	if err != nil {
		return s, err
	}
	var r struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	err = json.Unmarshal(out, &r)
	return paired.Sample{Value: r.End.Received.Bits / 8e9}, err
}

// same compares all files of two directories, and returns how many bytes they have.
func same(want, got string) (n uint64, err error) {
	err = filepath.WalkDir(want, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(want, p)
		if err != nil {
			return err
		}
		a, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(got, rel))
		if err == nil && !bytes.Equal(a, b) {
			err = fmt.Errorf("%w: %s is another file there", paired.ErrFailed, rel)
		}
		n += uint64(len(b))
		return err
	})
	return n, err
}
