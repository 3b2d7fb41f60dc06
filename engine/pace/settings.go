package pace

import "github.com/penstock-io/penstock/engine"

// Settings describe the options of transmit queues that take an Options, for the Spec of an engine.
var Settings = []engine.Option{
	{Key: "pace_burst", Of: engine.OfTx, Type: engine.Bytes, Min: 0, Max: 1 << 30, Field: "Burst",
		Doc: "Bytes that may leave at once after a rest, with a rate. Without it 2048 more than leave in 4 ms."},
	{Key: "pace_overhead", Of: engine.OfTx, Type: engine.Bytes, Min: 0, Max: 1 << 16, Default: "0B", Field: "Overhead",
		Doc: "Bytes that are added to each packet when the rate is counted; 24 limits the load of an Ethernet."},
	{Key: "drop_late", Of: engine.OfTx, Type: engine.Bool, Default: "false", Field: "DropLate",
		Doc: "Drops packets whose time has passed by more than `late`."},
	{Key: "late", Of: engine.OfTx, Type: engine.Time, Min: 0, Max: 3600e9, Default: "0s", Field: "Late", Doc: "See `drop_late`."},
	{Key: "horizon", Of: engine.OfTx, Type: engine.Time, Min: 0, Max: 3600e9, Default: "0s", Field: "Horizon",
		Doc: "Refuses packets whose time is further ahead; 0 for no limit."},
	{Key: "spin", Of: engine.OfTx, Type: engine.Time, Min: 0, Max: 2e6, Default: "0s", Field: "Spin",
		Doc: "How long before the time to leave the queue looks at the clock instead of sleeping."},
}
