package system

import (
	"cmp"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/s3"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/filter"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/stage/record"
)

// recorder is a stage or an application that may record.
type recorder interface{ Recorder() *record.Recorder }

// RotateRecordings ends the files that the sinks and stages of the file write, and begins others; a
// ring is written to a file. It returns how many recordings there are.
func (s *System) RotateRecordings() (n int) {
	for _, r := range s.recorders() {
		r.Rotate()
		n++
	}
	return n
}

func (s *System) recorders() (all []*record.Recorder) {
	add := func(x recorder) {
		if r := x.Recorder(); r != nil {
			all = append(all, r)
		}
	}
	for _, a := range s.apps {
		add(a.app)
	}
	for i := range s.ifaces {
		for k := range s.ifaces[i].Rx {
			for _, x := range s.ifaces[i].Rx[k].guard.stages {
				if r, ok := x.(recorder); ok {
					add(r)
				}
			}
		}
	}
	return all
}

// checkFilter compiles the filter of a recording.
func (p *Plan) checkFilter(r *config.Recording, path string, from *engine.Capabilities) {
	if r.Filter == "" {
		return
	}
	if _, err := filter.Compile(r.Filter, record.LinkOf(from.Frames)); err != nil {
		p.refuse(config.CodeValue, path+".filter", err.Error(), "", "")
	}
}

// recordOf is a recording of what comes from a queue.
func recordOf(c *config.Recording, f *Interface, g *guard) (*record.Options, error) {
	info := f.Port.Info()
	release, _ := sys.KernelRelease()
	o := &record.Options{Name: c.Record, Format: record.Format(c.Format), Filter: c.Filter,
		Interface: pcap.Interface{Name: cmp.Or(info.Device, f.Name), MAC: info.MAC, Speed: info.Speed,
			OS: strings.TrimSpace("Linux " + release), Writer: "penstock"},
		Overwrite: c.Overwrite, Ring: c.Ring, After: c.After,
		Dropped: func() uint64 {
			var s engine.RxStats
			g.q.Stats(&s)
			return s.Drops.Total()
		}}
	if r := c.Rotate; r != nil {
		o.MaxBytes, o.MaxPackets, o.Every, o.Keep = int64(r.Size), uint64(r.Packets), r.Time, int64(r.Keep)
	}
	if c.Upload == "" {
		return o, nil
	}
	var err error
	o.Upload, err = s3.New(c.Upload)
	return o, err
}
