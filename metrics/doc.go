// Package metrics counts on hot paths: counters, gauges and histograms with one writer, and
// families for exporters. They cost a few nanoseconds, allocate nothing, and may be read at any
// time from any goroutine.
//
// Each metric has one writer: the goroutine that owns the queue, the poller or the
// connection it belongs to. That makes an update a plain load and an atomic store,
// which processors never contend for, and it is a rule that the caller keeps: two
// writers lose updates. Builds with -tags invariants check it and panic. The role
// of writer may move if the move synchronises (a channel, a mutex). What several
// goroutines do is counted in one metric each and added up by the reader.
//
// Readers take snapshots: plain values ([HistogramSnapshot], uint64, int64) to
// print, subtract, merge and export. Metrics have no names and no registry here;
// the struct they are fields of names them.
//
// The zero value of every metric is ready to use. Metrics must not be copied after
// first use.
package metrics
