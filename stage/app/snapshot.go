package app

import (
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/stage/record"
)

// Snapshot is what an application has done so far. Once it has ended, Packets is the sum of Sent,
// Taken and all Drops.
type Snapshot struct {
	Name   string `json:"name"`
	Kind   Kind   `json:"kind"`
	Bursts uint64 `json:"bursts"`
	// Packets and Bytes were received, Sent and SentBytes were given to the transmit queue, Taken
	// are packets that were used up here.
	Packets   uint64            `json:"packets"`
	Bytes     uint64            `json:"bytes"`
	Sent      uint64            `json:"sent"`
	SentBytes uint64            `json:"sent_bytes"`
	Taken     uint64            `json:"taken"`
	Drops     Drops             `json:"-"`
	Dropped   map[string]uint64 `json:"dropped,omitempty"` // Drops that occurred, by their names
	Flows     []FlowCount       `json:"flows,omitempty"`   // by their ids
	Sizes     []SizeCount       `json:"sizes,omitempty"`   // classes that occurred
	Tensor    *TensorSnapshot   `json:"tensor,omitempty"`
	Record    *record.Snapshot  `json:"record,omitempty"`
}

// Snapshot is what the application has done so far. Counts that belong together may be a burst
// apart while it runs.
func (a *App) Snapshot() Snapshot {
	c := &a.c
	s := Snapshot{Name: a.o.Name, Kind: a.o.Kind}
	// What is derived is read before what it derives from, so that nothing seems to be sent that
	// was not received.
	if a.reports != nil {
		a.reports.Report(&s)
	} else {
		a.own.Report(&s)
	}
	for i, n := range s.Drops {
		if n > 0 {
			if s.Dropped == nil {
				s.Dropped = map[string]uint64{}
			}
			s.Dropped[Drop(i).String()] = n
		}
	}
	for i := range c.sizes {
		if n := c.sizes[i].Load(); n > 0 {
			class := SizeCount{Packets: n}
			if i < len(sizeClasses) {
				class.UpTo = sizeClasses[i]
			}
			s.Sizes = append(s.Sizes, class)
		}
	}
	s.Flows = c.flowCounts()
	s.Bursts, s.Packets, s.Bytes = c.bursts.Load(), c.packets.Load(), c.bytes.Load()
	return s
}

// Families are the counts of applications in the form that exporters take; all of a process belong
// into one call.
func Families(all []*App) []metrics.Family {
	var out []metrics.Family
	snaps := make([]Snapshot, len(all))
	for i, a := range all {
		snaps[i] = a.Snapshot()
	}
	family := func(name, help string, labels ...string) *metrics.Family {
		out = append(out, metrics.Family{Name: name, Help: help, Kind: metrics.KindCounter,
			Labels: append([]string{"application"}, labels...)})
		return &out[len(out)-1]
	}
	add := func(f *metrics.Family, s *Snapshot, n uint64, labels ...string) {
		f.Samples = append(f.Samples, metrics.Sample{Values: append([]string{metrics.LabelValue(s.Name)}, labels...),
			Value: float64(n)})
	}
	packets := family("penstock_application_packets_total", "Packets that an application received, sent, or used up.",
		"what")
	for i := range snaps {
		s := &snaps[i]
		add(packets, s, s.Packets, "received")
		add(packets, s, s.Sent, "sent")
		add(packets, s, s.Taken, "taken")
	}
	bytes := family("penstock_application_bytes_total", "Bytes of packets that an application received or sent.",
		"what")
	for i := range snaps {
		add(bytes, &snaps[i], snaps[i].Bytes, "received")
		add(bytes, &snaps[i], snaps[i].SentBytes, "sent")
	}
	dropped := family("penstock_application_dropped_total", "Packets that an application dropped.", "reason")
	for i := range snaps {
		for reason, n := range snaps[i].Drops {
			if n > 0 {
				add(dropped, &snaps[i], n, Drop(reason).String())
			}
		}
	}
	tensors := family("penstock_application_tensors_total", "Tensors that an application published.")
	for i := range snaps {
		if t := snaps[i].Tensor; t != nil {
			add(tensors, &snaps[i], t.Generations)
		}
	}
	rows := family("penstock_application_tensor_rows_total",
		"Rows of tensors that came, and rows of published ones that did not.", "what")
	for i := range snaps {
		if t := snaps[i].Tensor; t != nil {
			add(rows, &snaps[i], t.Rows, "placed")
			add(rows, &snaps[i], t.Missing, "missing")
		}
	}
	recorded := family("penstock_application_recorded_total",
		"Packets that an application wrote to files, did not record by its filter, and lost.", "what")
	for i := range snaps {
		if r := snaps[i].Record; r != nil {
			add(recorded, &snaps[i], r.Packets, "written")
			if r.Filtered > 0 {
				add(recorded, &snaps[i], r.Filtered, "filtered")
			}
			for reason, n := range r.Lost {
				add(recorded, &snaps[i], n, reason)
			}
		}
	}
	uploads := family("penstock_application_uploads_total",
		"Files of an application that were uploaded, or removed before, and tries that failed.", "what")
	for i := range snaps {
		if r := snaps[i].Record; r != nil && r.Upload != nil {
			add(uploads, &snaps[i], r.Upload.Files, "uploaded")
			add(uploads, &snaps[i], r.Upload.Removed, "removed")
			add(uploads, &snaps[i], r.Upload.Failures, "failed")
		}
	}
	packetsOf := family("penstock_application_batch_packets_total",
		"Packets of batches that became rows of tensors, and those that were missing in them.", "what")
	for i := range snaps {
		if t := snaps[i].Tensor; t != nil && t.Batches != nil {
			add(packetsOf, &snaps[i], t.Batches.Packets, "placed")
			add(packetsOf, &snaps[i], t.Batches.Missing, "missing")
		}
	}
	return out
}
