package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/spf13/cobra"
)

func newBenchCompare(s streams) *cobra.Command {
	var out bench.Output
	var margin string
	var failWorse bool
	c := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Compare two result files: what became better or worse from A to B",
		Long: `Compares what two runs measured of ours, row by row: medians, their ratio B/A with its 95% interval, the p-value of the
Mann-Whitney U test, and a verdict. Rows that only one file has are named. The runs were not made in pairs, so a change of
the machine between them looks like a change of the program: files of different machines are warned about.

The exit status is 0 whatever the verdicts are, and 1 with --fail-worse when a row is worse by more than the margin.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &usageError{fmt.Errorf("bench compare: expected two result files, A.json and B.json; got %d",
					len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			m, err := parseMargin(margin)
			if err != nil {
				return &usageError{err}
			}
			if err := out.Writable(); err != nil {
				return err
			}
			a, errA := paired.ReadFile(args[0])
			b, errB := paired.ReadFile(args[1])
			if err := errors.Join(errA, errB); err != nil {
				return err
			}
			x, err := paired.Compare(args[0], a, args[1], b, m)
			if err != nil {
				return err
			}
			if err := out.Write(s.out, x); err != nil {
				return err
			}
			if n := x.Count(paired.Worse); failWorse && n > 0 {
				return fmt.Errorf("%d of %d rows are worse by more than %s", n, len(x.Rows), margin)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&margin, "margin", fmt.Sprintf("%g%%", 100*paired.DefaultMargin), "within which both are the same")
	f.BoolVar(&failWorse, "fail-worse", false, "exit with status 1 when a row is worse by more than the margin")
	resultFlags(c, out.ResultFlags)
	return c
}

// parseMargin reads a part such as 5% or 0.05.
func parseMargin(s string) (float64, error) {
	number, isPercent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if isPercent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v < 1) {
		return 0, fmt.Errorf("--margin %q: expected a part from 0 up to 1, such as 5%% or 0.05", s)
	}
	return v, nil
}
