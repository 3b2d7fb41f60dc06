package system

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/stage/checksum"
	"github.com/penstock-io/penstock/stage/feed"
	"github.com/penstock-io/penstock/stage/record"
)

// Stages are the stages of this build, by the words that files have for them.
func Stages() []engine.StageKind { return []engine.StageKind{checksum.Kind, feed.Kind, record.Kind} }

// stagePlan is a stage to be, with the options of the file.
type stagePlan struct {
	kind    *engine.StageKind
	options any
	record  *config.Recording // of the stage record
}

// planStages finds the stages of a receive queue, and says which are not here.
func (p *Plan) planStages(q *config.RxQueue, e engine.Engine, path string) (stages []stagePlan, names []string) {
	if e == nil {
		return nil, nil
	}
	table := p.o.Stages
	if table == nil {
		table = Stages()
	}
	for i := range q.Stages {
		spec := engine.StageSpec{Queue: q.Name, Port: e.Capabilities()}
		k, err := engine.FindStage(table, q.Stages[i].Type, &spec)
		if err != nil {
			p.need(config.CodeReference, fmt.Sprintf("%s.stages[%d].type", path, i), err.Error(), "", "")
			continue
		}
		x := stagePlan{kind: k, options: spec.Options}
		if q.Stages[i].Record != "" {
			x.record = &q.Stages[i].Recording
			p.checkFilter(x.record, fmt.Sprintf("%s.stages[%d]", path, i), &spec.Port)
		}
		stages, names = append(stages, x), append(names, k.Name)
	}
	return stages, names
}

// openStages puts the stages of a queue of an interface on it.
func (g *guard) openStages(f *Interface, stages []stagePlan, spec engine.StageSpec) error {
	for _, x := range stages {
		if spec.Options = x.options; x.record != nil {
			o, err := recordOf(x.record, f, g)
			if err != nil {
				return err
			}
			spec.Options = o
		}
		s, err := x.kind.Open(g.in, spec)
		if err != nil {
			return fmt.Errorf("stage %s: %w", x.kind.Name, err)
		}
		g.stages, g.in = append(g.stages, s), s
	}
	return nil
}

// closeQueue closes the stages from the application on, and the queue last. The receiving goroutine
// has left.
func (g *guard) closeQueue() (err error) {
	for _, s := range slices.Backward(g.stages) {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, g.q.Close())
}

// StageSnapshot is a stage of a receive queue: what it gave, dropped and copied.
type StageSnapshot struct {
	Type   string
	Stats  engine.RxStats
	Counts []engine.Count   // what else it counts
	Record *record.Snapshot // of the stage record
}

func (q *RxQueue) stages() (out []StageSnapshot) {
	for i, s := range q.guard.stages {
		x := StageSnapshot{Type: q.Stages[i]}
		s.Stats(&x.Stats)
		if c, ok := s.(engine.StageCounter); ok {
			x.Counts = c.Counts()
		}
		if r, ok := s.(recorder); ok {
			stats := r.Recorder().Stats()
			x.Record = stats.Snapshot()
		}
		out = append(out, x)
	}
	return out
}

// stageFamilies are the counts of all stages, nil without one.
func (s *System) stageFamilies() []metrics.Family {
	labels := []string{"port", "queue", "stage"}
	packets := metrics.Family{Name: "penstock_stage_packets_total",
		Help: "Packets that a stage of a receive queue gave.", Kind: metrics.KindCounter, Labels: labels}
	dropped := metrics.Family{Name: "penstock_stage_packets_dropped_total", Help: "Packets that it dropped.",
		Kind: metrics.KindCounter, Labels: append(slices.Clone(labels), "reason")}
	counts := metrics.Family{Name: "penstock_stage_events_total", Help: "What a stage counts besides.",
		Kind: metrics.KindCounter, Labels: append(slices.Clone(labels), "event")}
	levels := metrics.Family{Name: "penstock_stage_level",
		Help: "What a stage holds, such as packets that are with a kernel, now or at most.", Kind: metrics.KindGauge,
		Labels: append(slices.Clone(labels), "level")}
	for i := range s.ifaces {
		f := &s.ifaces[i]
		for k := range f.Rx {
			for n, x := range f.Rx[k].stages() {
				at := []string{metrics.LabelValue(f.Name), fmt.Sprint(f.Rx[k].ID), fmt.Sprintf("%d %s", n, x.Type)}
				packets.Samples = append(packets.Samples, metrics.Sample{Values: at, Value: float64(x.Stats.Packets)})
				for _, c := range x.Counts {
					family := &counts
					if c.Gauge {
						family = &levels
					}
					family.Samples = append(family.Samples,
						metrics.Sample{Values: append(slices.Clone(at), metrics.LabelValue(c.Name)),
							Value: float64(c.N)})
				}
				for reason, drops := range x.Stats.Drops {
					if drops > 0 {
						dropped.Samples = append(dropped.Samples,
							metrics.Sample{Values: append(slices.Clone(at), engine.Drop(reason).String()),
								Value: float64(drops)})
					}
				}
			}
		}
	}
	if packets.Samples == nil {
		return nil
	}
	return []metrics.Family{packets, dropped, counts, levels}
}
