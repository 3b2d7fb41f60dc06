package sections

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/stage/record"
	"github.com/penstock-io/penstock/system"
)

// recording has what receivers get recorded into Options.Record: of several queues, each into a
// file with its name. It changes cfg, whose interfaces are its own.
func (x *runner) recording(cfg *config.Config, sockets bool) {
	var at []string
	if !sockets {
		for i := range x.p.Receivers {
			at = append(at, x.p.Receivers[i].name())
		}
	} else {
		for i := range x.p.Sockets {
			for _, id := range x.p.Sockets[i].Queues {
				at = append(at, fmt.Sprintf("%s/%d", x.p.Sockets[i].Interface, id))
			}
		}
	}
	for i := range cfg.Interfaces {
		f := &cfg.Interfaces[i]
		if f.Rx == nil {
			continue
		}
		rx := *f.Rx
		rx.Queues, f.Rx = slices.Clone(rx.Queues), &rx
		for k := range rx.Queues {
			q := &rx.Queues[k]
			name := fmt.Sprintf("%s/%d", f.Name, q.ID)
			if !slices.Contains(at, name) {
				continue
			}
			ext := filepath.Ext(x.o.Record)
			to := config.Recording{Record: x.o.Record, Format: string(record.PcapNG)}
			for _, f := range []record.Format{record.Pcap, record.Raw, record.NPY, record.Safetensors} {
				if ext == "."+string(f) {
					to.Format = string(f)
				}
			}
			if len(at) > 1 {
				to.Record = strings.TrimSuffix(to.Record, ext) + "-" + strings.ReplaceAll(name, "/", "-") + ext
			}
			q.Stages = append([]config.Stage{{Type: record.Kind.Name, Recording: to}}, q.Stages...)
		}
	}
}

// recorded notes what is in the files.
func (r *Result) recorded(s *system.Snapshot) {
	for _, f := range s.Interfaces {
		for _, q := range f.Rx {
			for _, x := range q.Stages {
				if x.Record == nil {
					continue
				}
				lost := ""
				for _, reason := range slices.Sorted(maps.Keys(x.Record.Lost)) {
					lost += fmt.Sprintf(", %s %d", reason, x.Record.Lost[reason])
				}
				r.note("recorded %d packets of %s/%d, %d bytes%s", x.Record.Packets, f.Name, q.ID, x.Record.Bytes, lost)
			}
		}
	}
}
