package share

import (
	"maps"
	"slices"

	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/transfer"
)

// maxAccounts is how many names of certificates have an account of their own.
const maxAccounts = 100

// The accounts of all others: no certificate has such a name. What a peer without one calls itself
// is its own choice, so it names none.
const (
	noCertificate = "(no certificate)"
	otherPeers    = "(others)"
)

// account is what the accesses that have ended came to.
type account struct{ completed, failed, bytes uint64 }

// accounts are those of reads and of uploads, by peer.
type accounts [2]map[string]*account

var accessKinds = [2]string{"get", "put"}

// accountOf is the account that a peer's accesses go to, as far as there is room for its name.
func accountOf(p *transfer.Peer) string {
	if c, ok := p.Certificate(); ok {
		return metrics.LabelValue(c.Name)
	}
	return noCertificate
}

// enter counts an access that has ended.
func (a *accounts) enter(peer string, x *Access) {
	all := &a[0]
	if x.Upload {
		all = &a[1]
	}
	if *all == nil {
		*all = map[string]*account{noCertificate: {}, otherPeers: {}}
	}
	c := (*all)[peer]
	switch {
	case c != nil:
	case len(*all) < maxAccounts+2:
		c = new(account)
		(*all)[peer] = c
	default:
		c = (*all)[otherPeers]
	}
	if x.Whole {
		c.completed++
	} else {
		c.failed++
	}
	c.bytes += x.Good - min(x.From, x.Good)
}

// Families is what peers have read and uploaded, in the form that exporters take. Reads are only
// known with Options.OnAccess.
func (s *Server) Families() []metrics.Family {
	files := metrics.Family{Name: "penstock_share_files_total",
		Help: "Files and tensors that peers read (get) and uploaded (put), by how that ended.",
		Kind: metrics.KindCounter, Labels: []string{"peer", "kind", "outcome"}}
	bytes := metrics.Family{Name: "penstock_share_bytes_total",
		Help: "Bytes of those, entered when a file ends; of reads as readers say.", Kind: metrics.KindCounter,
		Labels: []string{"peer", "kind"}}
	s.access.mu.Lock()
	for i, kind := range accessKinds {
		all := s.access.ended[i]
		for _, peer := range slices.Sorted(maps.Keys(all)) {
			c := all[peer]
			files.Samples = append(files.Samples, metrics.Sample{Values: []string{peer, kind, "completed"},
				Value: float64(c.completed)},
				metrics.Sample{Values: []string{peer, kind, "failed"}, Value: float64(c.failed)})
			bytes.Samples = append(bytes.Samples, metrics.Sample{Values: []string{peer, kind}, Value: float64(c.bytes)})
		}
	}
	s.access.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	gauge := func(name, help string, v int) metrics.Family {
		return metrics.Family{Name: name, Help: help, Kind: metrics.KindGauge,
			Samples: []metrics.Sample{{Value: float64(v)}}}
	}
	return []metrics.Family{files, bytes, gauge("penstock_share_files", "Files that are served.",
		len(s.files)+len(s.arrived)),
		gauge("penstock_share_left_out",
			"Names that the last scan found and that are not served, or not as they are now.", s.left)}
}
