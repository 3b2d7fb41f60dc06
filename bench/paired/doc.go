// Package paired runs contenders in interleaved pairs on an idle machine, and computes ratios with
// intervals, verdicts and result files.
//
//	row, err := paired.Run(ctx, paired.Plan{
//		Name: "copy 1 MiB", Unit: paired.GBs,
//		Ours:   paired.Contender{Name: "vec.Copy", Run: ours},
//		Theirs: []paired.Contender{{Name: "built-in copy", Run: theirs}},
//	})
//	fmt.Println(row.Theirs[0].Ratio.Verdict) // better, worse, same or inconclusive
//
// What Run does, in this order:
//
//   - Rounds, 20 unless the plan says otherwise. In each, ours and every one of theirs run once, in
//     an order that the seed decides and in which everybody has each place equally often. One round
//     before them warms up and is thrown away.
//   - Before each round the gate waits, for a bounded time, until other programs leave the machine
//     alone, and notes how busy it was.
//   - The ceiling, what the hardware can do at most, is measured in each round. A median above it
//     fails the row.
//   - Each run says how many bytes its receiver checked. One that checked nothing, without a
//     reason, gives no verdict.
//   - No sample is dropped. The verdict comes from the 95 % interval of the median ratio
//     ours/theirs over the rounds.
//
// A Report holds rows with the machine and the method, and is the one format of result files
// (docs/bench-format.md): Read and Report.Write, Report.Table for people, Compare for two of them.
package paired
