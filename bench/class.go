package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/peers"
)

// class is one line of the table of targets: what ours is measured by, what peers are measured by,
// what is to be reached.
type class struct {
	name    string
	driver  string
	kind    string // "p50", "p99" (of the 64 B round trip), "put", "blocks", "borrow"
	mode    string
	size    uint64
	crc     bool    // payload checksums on; those of the path below TCP
	sealed  bool    // encrypted
	ratio   float64 // ours/theirs that is to be reached; 0: 1
	goal    float64 // the absolute figure of the machine the targets were set on; 0: none
	rivals  []rival
	network string // the congestion control that everybody is forced to; "" is as shipped
}

// rival is one way to run a tool for a class.
type rival struct {
	tool      string // as in --against
	name      string
	command   string // of its client; the server's is the same but for the address
	unchecked string
	verified  uint64 // bytes that its receiver checks in each run; 0 with unchecked
	run       func(context.Context) (float64, error)
}

// contender is the rival in a plan.
func (v *rival) contender(versions map[string]string) paired.Contender {
	return paired.Contender{Name: v.name, Version: versions[v.tool], Command: v.command, Unchecked: v.unchecked,
		Run: func(ctx context.Context) (paired.Sample, error) {
			x, err := v.run(ctx)
			return paired.Sample{Value: x, Verified: v.verified}, err
		}}
}

// messagesFor is how many messages of a size make a run of a tool long enough: about as many bytes
// as count says.
func messagesFor(size, bytes uint64) int { return int(min(max(bytes/size, 4), 40000)) }

const (
	ucxUnchecked    = "ucx_perftest does not look at the bytes it receives"
	fiUnchecked     = "fi_pingpong does not look at the bytes it receives"
	iperf3Unchecked = "iperf3 counts the bytes it receives and does not look at them"
)

func ucxRate(tls, test string, size, bytes uint64) rival {
	n := messagesFor(size, bytes)
	name := "UCX " + tls + " " + strings.TrimSuffix(strings.TrimPrefix(test, "ucp_"), "_bw")
	return rival{"ucx", name, ucxCommand(tls, test, size, n, 50), ucxUnchecked, 0,
		func(ctx context.Context) (float64, error) {
			r, err := ucx(ctx, tls, test, size, n, 50)
			return r.GBps, err
		}}
}

func ucxLatency(tls string, percentile float64) rival {
	n := 40000
	if tls == "tcp" {
		n = 10000
	}
	return rival{"ucx", "UCX " + tls + " tag", ucxCommand(tls, "tag_lat", 64, n, percentile), ucxUnchecked, 0,
		func(ctx context.Context) (float64, error) {
			r, err := ucx(ctx, tls, "tag_lat", 64, n, percentile)
			return r.Percentile, err
		}}
}

// ucxCommand is how ucx runs it, for the report.
func ucxCommand(tls, test string, size uint64, n int, percentile float64) string {
	return fmt.Sprintf("UCX_TLS=%s UCX_NET_DEVICES=lo ucx_perftest 127.0.0.1 -t %s -s %d -n %d -w %d -R %v -f -v",
		tls, test, size, n, max(1, n/10), percentile)
}

func fiRate(provider string, size, bytes uint64) rival {
	n := messagesFor(size, bytes)/2 + 1
	return rival{"fi", "libfabric " + provider, fmt.Sprintf("fi_pingpong -p %s -e rdm -I %d -S %d 127.0.0.1", provider,
		n, size), fiUnchecked, 0,
		func(ctx context.Context) (float64, error) {
			r, err := fi(ctx, provider, size, n)
			return r.GBps, err
		}}
}

func iperf3Rate(size, bytes uint64) rival {
	return rival{"iperf3", "iperf3", fmt.Sprintf("iperf3 -c 127.0.0.1 -l %d -n %d -J", size, bytes), iperf3Unchecked, 0,
		func(ctx context.Context) (float64, error) { return iperf3(ctx, size, bytes) }}
}

func tcpRivals(size, bytes uint64) []rival {
	r := []rival{ucxRate("tcp", "tag_bw", size, bytes), fiRate("tcp", size, bytes)}
	// iperf3 takes blocks of at most 1 MiB: beyond that it moves the same warm megabyte again and
	// again, which is another job.
	if size <= peers.Iperf3MaxSize {
		r = append(r, iperf3Rate(size, bytes))
	}
	return r
}

// openSSLRate sends with writes of 256 KiB. Its congestion control is one that does not pace, as
// ours on loopback.
func openSSLRate(size, bytes uint64, program func() (string, error)) rival {
	o := peers.OpenSSLTest{Size: size, Messages: messagesFor(size, bytes), Chunk: 256 << 10, Congestion: "reno"}
	// of two slots
	return rival{"openssl", "OpenSSL TLS 1.3 AES-128-GCM",
		"openssl-stream client PORT CPU " + strings.Join(o.Args(), " "), "", 2 * size,
		func(ctx context.Context) (_ float64, err error) {
			if o.Program, err = program(); err != nil {
				return 0, err
			}
			return openSSL(ctx, o)
		}}
}

// classes is the table of targets. network limits it to the classes for one forced congestion
// control, "" to those as shipped. volume is how many bytes a run of a peer's tool moves; openSSL
// is TransferOptions.OpenSSL.
func classes(network string, volume uint64, openSSL func() (string, error)) []class {
	var all []class
	shm := func(size uint64, goal float64) {
		all = append(all, class{name: "shm put " + FormatSize(size), driver: "shm", kind: "put", mode: Spin, size: size,
			goal: goal,
			rivals: []rival{ucxRate("posix", "ucp_put_bw", size, 2*volume), ucxRate("posix", "tag_bw", size, 2*volume),
				fiRate("shm", size, volume)}})
	}
	tcp := func(size uint64, ratio, goal float64, crc bool) {
		c := class{name: "tcp put " + FormatSize(size), driver: "tcp", kind: "put", mode: Spin, size: size, crc: crc,
			ratio: ratio, goal: goal, rivals: tcpRivals(size, volume), network: network}
		how := "as shipped"
		if network != "" {
			how = "all " + network
		}
		sum := "CRC off"
		if crc {
			sum = "CRC on"
		}
		c.name += ", " + how + ", " + sum
		if ratio == 0 { // reported, not judged
			c.rivals = nil
		}
		all = append(all, c)
	}
	if network != "" {
		for _, size := range []uint64{1 << 20, 16 << 20, 256 << 20} {
			tcp(size, 0.95, 0, false)
		}
		for _, size := range []uint64{1 << 20, 16 << 20, 256 << 20} {
			tcp(size, 0, 0, true)
		}
		return all
	}
	for _, p := range []struct {
		kind   string
		p      float64
		driver string
		goal   float64
		tls    string
	}{{"p50", 50, "shm", 0.30, "posix"}, {"p99", 99, "shm", 0.45, "posix"}, {"p50", 50, "tcp", 3.4, "tcp"},
		{"p99", 99, "tcp", 5.5, "tcp"}} {
		all = append(all, class{name: fmt.Sprintf("%s 64 B put + seen, %s, spinning", p.driver, p.kind),
			driver: p.driver, kind: p.kind, mode: Spin, size: 64,
			crc: true, goal: p.goal, rivals: []rival{ucxLatency(p.tls, p.p)}})
	}
	for _, d := range []string{"shm", "tcp"} {
		all = append(all, class{name: d + " 64 B put + seen, p50, event mode", driver: d, kind: "p50", mode: Event,
			size: 64, crc: true})
	}
	shm(64<<10, 39)
	shm(1<<20, 25.8)
	shm(16<<20, 16)
	shm(256<<20, 15)
	for _, size := range []uint64{64, 1 << 20, 256 << 20} {
		all = append(all, class{name: "shm borrow " + FormatSize(size), driver: "shm", kind: "borrow", mode: Event,
			size: size, goal: 500})
	}
	tcp(1<<20, 1, 9.5, true)
	tcp(16<<20, 1, 8, true)
	tcp(256<<20, 1, 6, true)
	for _, size := range []uint64{1 << 20, 16 << 20, 256 << 20} {
		tcp(size, 0, 0, false)
	}
	for _, size := range []uint64{1 << 20, 16 << 20, 64 << 20, 256 << 20} {
		all = append(all, class{name: "tcp put " + FormatSize(size) + ", encrypted", driver: "tcp", kind: "put",
			mode: Spin, size: size, sealed: true,
			ratio: 0.9, rivals: []rival{openSSLRate(size, volume, openSSL)}})
	}
	all = append(all,
		class{name: "shm put 1024 x 4 KiB", driver: "shm", kind: "blocks", mode: Spin, size: 4 << 20, goal: 15},
		class{name: "tcp put 1024 x 4 KiB", driver: "tcp", kind: "blocks", mode: Spin, size: 4 << 20, crc: true,
			goal: 4})
	return all
}

// small are the classes of a smoke run.
func small(all []class) []class {
	return slices.DeleteFunc(slices.Clone(all), func(c class) bool { return c.size > 1<<20 && c.kind != "blocks" })
}
