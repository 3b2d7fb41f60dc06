package flow_test

import (
	"fmt"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

func Example() {
	table, err := flow.NewTable(flow.TableOptions{}) // what no rule accepts is left to the kernel
	if err != nil {
		fmt.Println(err)
		return
	}
	rules, err := flow.ParseRules(`
		name video  udp dst 5000-5010 ip src 10.0.0.0/8 -> queue 3
		name radio  prio 10 ecpri type 0 pc_id 7 -> rss 0-3`)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := table.Apply(flow.Add(rules[0]), flow.Add(rules[1]))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("version", result.Version, "ids", result.IDs)

	buf := make([]byte, 256)
	frame := packet.ECPRI(buf[14:])
	copy(buf[12:], []byte{0xae, 0xfe})             // an eCPRI frame
	copy(frame, []byte{0x10, 0, 0, 8, 0, 7, 0, 0}) // IQ data of pc_id 7
	var l packet.Layers
	if packet.Parse(buf, &l) == packet.OK {
		d := table.Snapshot().Classify(buf, &l)
		fmt.Println(d.Verdict, "rule", d.ID)
	}
	// Output:
	// version 2 ids [1 2]
	// deliver rule 2
}

func ExampleValidate() {
	rules, err := flow.ParseRules("name a udp dst 1-9 -> queue 1\nname b udp dst 5 -> queue 2\nname c udp dst 3 src " +
		"7 -> queue 1")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range flow.Validate(rules) {
		fmt.Println(p.Kind, p.Name, p.Field)
	}
	// Output:
	// ambiguous b priority
	// unreachable b match
	// unreachable c match
}
