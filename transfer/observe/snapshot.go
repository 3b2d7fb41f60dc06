package observe

import (
	"time"

	"github.com/penstock-io/penstock/metrics"
)

// Snapshot is the state of a node at one time: plain values that share nothing with the node, and
// no secrets (no keys of exports, no tokens, no certificates). Its JSON form has stable field
// names, is described in docs/observability.md, and is what `penstock status --json` prints.
// Counters only grow as long as the node lives; those of a peer or path begin with it. Texts that
// came from peers (names, reasons) may hold any characters.
type Snapshot struct {
	Time      time.Time        `json:"time"`
	Node      NodeStatus       `json:"node"`
	Memory    MemoryStatus     `json:"memory"`
	Exports   []ExportStatus   `json:"exports"`   // by name, those without a name last
	Peers     []PeerStatus     `json:"peers"`     // in the order in which they came
	Transfers []TransferStatus `json:"transfers"` // begun here and under way, the oldest first
	Totals    []KindTotals     `json:"totals"`    // one for each kind of transfer
	Paths     []PathTotals     `json:"paths"`     // one for each driver that was ever used, by name
	Latency   []Latency        `json:"latency"`   // one for each kind and path that completed a transfer
	Setup     []Latency        `json:"setup"`     // one for each path that was set up from here; Kind is "setup"
	// Omitted says how many rows of a list are not there, because the snapshot had to fit into an
	// answer to a peer.
	Omitted Omitted `json:"omitted,omitzero"`
}

// Omitted counts rows that were left out of a Snapshot.
type Omitted struct {
	Exports   int `json:"exports,omitempty"`
	Peers     int `json:"peers,omitempty"`
	Transfers int `json:"transfers,omitempty"`
	Paths     int `json:"paths,omitempty"`   // of the peers that are there
	Explain   int `json:"explain,omitempty"` // paths whose Explain was left out
}

// NodeStatus is the node itself.
type NodeStatus struct {
	Name             string            `json:"name"`
	Instance         string            `json:"instance"`  // 16 hexadecimal digits: another one after a restart
	Addresses        []string          `json:"addresses"` // where it listens
	Started          time.Time         `json:"started"`
	UptimeSeconds    float64           `json:"uptime_seconds"`
	Drivers          []string          `json:"drivers"`           // of paths, in order of preference
	PeersTotal       uint64            `json:"peers_total"`       // that ever were connected
	Rejected         uint64            `json:"rejected"`          // connections that did not become peers
	Refused          uint64            `json:"refused"`           // requests of peers that were refused
	SetupFailures    map[string]uint64 `json:"setup_failures"`    // paths that could not be set up from here, by driver
	EventsMissed     map[string]uint64 `json:"events_missed"`     // by subscribers that were too slow, by kind of event
	TransfersRunning int               `json:"transfers_running"` // also those that Transfers omits
	Failed           string            `json:"failed,omitempty"`  // why the node moves nothing any more; see ErrFailed
	// Options.Insecure: plaintext beyond this machine is permitted
	Insecure bool            `json:"insecure"`
	Identity *IdentityStatus `json:"identity,omitempty"`
}

// IdentityStatus is the certificate by which the node proves its name. Keys are not shown.
type IdentityStatus struct {
	Name       string    `json:"name"`
	NotAfter   time.Time `json:"not_after"` // when it must have been renewed
	Accepted   uint64    `json:"accepted"`  // handshakes
	Refused    uint64    `json:"refused"`
	Loaded     uint64    `json:"loaded"` // times that certificates or rules were replaced
	LoadErrors uint64    `json:"load_errors"`
	LoadError  string    `json:"load_error,omitempty"` // the last one, until it is fixed
}

// MemoryStatus is the memory that the node itself manages, in bytes.
type MemoryStatus struct {
	LandingBudget     uint64 `json:"landing_budget_bytes"` // for pushed tensors, Options.Budget
	LandingReserved   uint64 `json:"landing_reserved_bytes"`
	LandingUsed       uint64 `json:"landing_used_bytes"`
	LandingHighWater  uint64 `json:"landing_high_water_bytes"`
	LandingAllocs     uint64 `json:"landing_allocs"`
	LandingFailed     uint64 `json:"landing_failed"` // tensors refused for lack of memory
	Registrations     int    `json:"registrations"`
	Registered        uint64 `json:"registered_bytes"`
	RegisteredMost    uint64 `json:"registered_high_water_bytes"`
	RegisterHits      uint64 `json:"register_hits"`
	RegisterMisses    uint64 `json:"register_misses"`
	RegisterFailed    uint64 `json:"register_failed"`
	RegisterEvictions uint64 `json:"register_evictions"`
}

// ExportStatus is memory that peers can reach. Its key is not shown.
type ExportStatus struct {
	Name       string `json:"name"` // "" for one that only a descriptor names, such as memory for a pushed tensor
	Bytes      uint64 `json:"bytes"`
	Rights     string `json:"rights"`
	Whole      bool   `json:"whole"` // a whole memfd: shared memory can reach it
	Tensor     string `json:"tensor,omitempty"`
	Generation uint64 `json:"generation"`
}

// PeerStatus is one connected peer.
type PeerStatus struct {
	ID               uint64    `json:"id"` // the node's own number of the connection
	Name             string    `json:"name"`
	Certificate      string    `json:"certificate,omitempty"` // the name in its certificate, if it has shown one
	Address          string    `json:"address"`
	Since            time.Time `json:"since"`
	RoundTripSeconds float64   `json:"round_trip_seconds"` // 0 before the first heartbeat
	SameHost         bool      `json:"same_host"`
	Security         string    `json:"security"` // of the control connection
	Rights           string    `json:"rights"`   // on this node
	Transfers        int       `json:"transfers"`
	// payload that went to the peer by all its paths, as far as this side took part
	BytesOut uint64       `json:"bytes_out"`
	BytesIn  uint64       `json:"bytes_in"`
	Refused  uint64       `json:"refused"`
	Totals   []KindTotals `json:"totals"`
	Paths    []PathStatus `json:"paths"`
}

// PathStatus is one path to a peer.
type PathStatus struct {
	Path         string       `json:"path"`
	ID           uint64       `json:"id"`
	Queue        string       `json:"queue,omitempty"` // the path belongs to the owner of this queue
	Since        time.Time    `json:"since"`
	Security     string       `json:"security"`
	Proof        string       `json:"proof"`
	OneSided     bool         `json:"one_sided"`
	Window       int          `json:"window"`
	InFlight     int          `json:"in_flight"` // operations; 0 for a queue, whose owner alone knows
	Queued       int          `json:"queued"`    // transfers that wait for their turn
	UserCopies   int          `json:"user_copies"`
	KernelCopies int          `json:"kernel_copies"`
	Cost         CostStatus   `json:"cost"`
	Counters     PathCounters `json:"counters"`
	Explain      []string     `json:"explain,omitempty"`
}

// CostStatus is what the path is taken to cost when a path is chosen.
type CostStatus struct {
	LatencySeconds float64 `json:"latency_seconds"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	Measured       bool    `json:"measured"`
}

// PathCounters are the counters of path.Stats under stable names. All of them only grow.
type PathCounters struct {
	OpsPosted      uint64 `json:"ops_posted"`
	OpsDone        uint64 `json:"ops_done"`
	OpsFailed      uint64 `json:"ops_failed"`
	BytesPut       uint64 `json:"bytes_put"`
	BytesGot       uint64 `json:"bytes_got"`
	BytesPlaced    uint64 `json:"bytes_placed"`
	BytesServed    uint64 `json:"bytes_served"`
	BytesCopied    uint64 `json:"bytes_copied"`
	NotifySent     uint64 `json:"notify_sent"`
	NotifyReceived uint64 `json:"notify_received"`
	WindowFull     uint64 `json:"window_full"`
	Rejected       uint64 `json:"rejected"`
	Corrupt        uint64 `json:"corrupt"`
	Syscalls       uint64 `json:"syscalls"`
	Wakeups        uint64 `json:"wakeups"`
	ZeroCopySends  uint64 `json:"zero_copy_sends"`
	ZeroCopyCopied uint64 `json:"zero_copy_copied"`
	HelpedBytes    uint64 `json:"helped_bytes"`
}

// Out is the payload that went to the peer, as far as this side had part in it.
func (a *PathCounters) Out() uint64 { return a.BytesPut + a.BytesServed }

// In is the payload that came from the peer, as far as this side had part in it.
func (a *PathCounters) In() uint64 { return a.BytesGot + a.BytesPlaced }

// Add adds the counters of another path.
func (a *PathCounters) Add(b *PathCounters) {
	a.OpsPosted += b.OpsPosted
	a.OpsDone += b.OpsDone
	a.OpsFailed += b.OpsFailed
	a.BytesPut += b.BytesPut
	a.BytesGot += b.BytesGot
	a.BytesPlaced += b.BytesPlaced
	a.BytesServed += b.BytesServed
	a.BytesCopied += b.BytesCopied
	a.NotifySent += b.NotifySent
	a.NotifyReceived += b.NotifyReceived
	a.WindowFull += b.WindowFull
	a.Rejected += b.Rejected
	a.Corrupt += b.Corrupt
	a.Syscalls += b.Syscalls
	a.Wakeups += b.Wakeups
	a.ZeroCopySends += b.ZeroCopySends
	a.ZeroCopyCopied += b.ZeroCopyCopied
	a.HelpedBytes += b.HelpedBytes
}

// TransferStatus is a transfer that this node began and that has not ended.
type TransferStatus struct {
	ID         ID      `json:"id"`
	Kind       string  `json:"kind"`
	Peer       string  `json:"peer"`
	PeerID     uint64  `json:"peer_id"`
	Bytes      uint64  `json:"bytes"`
	Moved      uint64  `json:"moved"`
	AgeSeconds float64 `json:"age_seconds"`
	Path       string  `json:"path"` // "" while none is chosen
	Priority   string  `json:"priority"`
	Stream     uint32  `json:"stream,omitempty"`
	Failovers  int     `json:"failovers,omitempty"`
}

// KindTotals are the transfers of one kind that this node (or, in PeerStatus, with this peer)
// began. Each one that began is in exactly one of Running, Completed, Canceled and Failed.
type KindTotals struct {
	Kind      string            `json:"kind"`
	Begun     uint64            `json:"begun"`
	Running   uint64            `json:"running"`
	Completed uint64            `json:"completed"`
	Canceled  uint64            `json:"canceled"`
	Failed    uint64            `json:"failed"`
	Failures  map[string]uint64 `json:"failures"` // Failed by reason; docs/observability.md lists them
	Rejected  map[string]uint64 `json:"rejected"` // calls that failed before a transfer began, by reason
	Bytes     uint64            `json:"bytes"`    // of completed transfers
	Partial   uint64            `json:"partial_bytes"`
	Retries   uint64            `json:"retries"`   // attempts after the first
	Failovers uint64            `json:"failovers"` // paths changed under way
	Fallbacks uint64            `json:"fallbacks"` // begun on another than the best path, which could not be set up
	Received  uint64            `json:"received"`  // transfers that peers began and completed, as they reported them
}

// PathTotals are all paths of one driver since the node began, those that are gone included.
type PathTotals struct {
	Path     string       `json:"path"`
	Up       uint64       `json:"up"`     // now
	Opened   uint64       `json:"opened"` // ever
	Counters PathCounters `json:"counters"`
}

// Latency is the distribution of durations of one kind of transfer over one path, from the call
// until the transfer was done.
type Latency struct {
	Kind  string  `json:"kind"`
	Path  string  `json:"path"`
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_seconds"`
	Min   float64 `json:"min_seconds"`
	P50   float64 `json:"p50_seconds"`
	P90   float64 `json:"p90_seconds"`
	P99   float64 `json:"p99_seconds"`
	P999  float64 `json:"p999_seconds"`
	Max   float64 `json:"max_seconds"`
	// Histogram is in nanoseconds; it does not travel in JSON.
	Histogram *metrics.HistogramSnapshot `json:"-"`
}

// Cut is the snapshot with at most the given number of rows in each list, which says how many it
// lacks. The lists of s stay as they are.
func (s Snapshot) Cut(rows int, explain bool) Snapshot {
	s.Exports = firstRows(s.Exports, rows, &s.Omitted.Exports)
	s.Transfers = firstRows(s.Transfers, rows, &s.Omitted.Transfers)
	s.Peers = append([]PeerStatus{}, firstRows(s.Peers, rows, &s.Omitted.Peers)...)
	for i := range s.Peers {
		r := &s.Peers[i]
		r.Paths = append([]PathStatus{}, firstRows(r.Paths, rows, &s.Omitted.Paths)...)
		for k := range r.Paths {
			if !explain && len(r.Paths[k].Explain) > 0 {
				r.Paths[k].Explain = nil
				s.Omitted.Explain++
			}
		}
	}
	return s
}

func firstRows[T any](all []T, n int, omitted *int) []T {
	if len(all) <= n {
		return all
	}
	*omitted += len(all) - n
	return all[:n:n]
}
