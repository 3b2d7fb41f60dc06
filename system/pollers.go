package system

import (
	"fmt"
	"runtime"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
)

// pollModes are the words of poll_mode that ask for a mode.
var pollModes = map[string]engine.PollMode{"event": engine.Event, "adaptive": engine.Adaptive, "busy": engine.Busy}

// planPoller finds the poller of a receive queue, which is called name and is called so nowhere
// else, and returns the poller's name. Queues with one core have one poller.
func (p *Plan) planPoller(q *config.RxQueue, name, path string) string {
	o := PollerPlan{Name: name, Core: -1, Queues: []string{name}, cpu: p.core(path+".cpu_core", q.CPUCore)}
	if q.CPUCore >= 0 {
		o.Name, o.Core, o.mode = fmt.Sprintf("core %d", q.CPUCore), q.CPUCore, engine.Adaptive
	}
	if mode, asked := pollModes[q.PollMode]; asked {
		o.mode, o.asked = mode, true
	}
	at := -1
	for i := range p.Pollers {
		if p.Pollers[i].Core == o.Core && o.Core >= 0 {
			at = i
		}
	}
	if at < 0 {
		at = len(p.Pollers)
		p.Pollers = append(p.Pollers, o)
	} else {
		x := &p.Pollers[at]
		x.Queues = append(x.Queues, name)
		if o.asked && x.asked && o.mode != x.mode {
			p.need(config.CodeConflict, path+".poll_mode",
				fmt.Sprintf("poll_mode: %v, and another queue of core %d says %v: they have one poller", o.mode, o.Core,
					x.mode), "one mode for all queues of a core", "")
		}
		if o.asked {
			x.mode, x.asked = o.mode, true
		}
	}
	x := &p.Pollers[at]
	x.Mode = x.mode.String()
	busy := 0
	for i := range p.Pollers {
		if p.Pollers[i].mode == engine.Busy {
			busy++
		}
	}
	if procs := runtime.GOMAXPROCS(0); x.mode == engine.Busy && busy >= procs {
		p.need(config.CodeHost, path+".poll_mode",
			fmt.Sprintf("%d busy pollers keep a processor each, and the Go scheduler has %d: none is left for "+
				"anything else", busy, procs), "",
			"poll_mode: adaptive, queues that share a cpu_core, or a larger GOMAXPROCS")
	}
	return x.Name
}
