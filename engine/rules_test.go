package engine

import "github.com/penstock-io/penstock/packet/flow"

// A table of package flow is all that an engine in software needs.
type softwareRules struct{ *flow.Table }

func (r softwareRules) List() []flow.Rule { return r.Snapshot().Rules() }

var _ Rules = softwareRules{}
