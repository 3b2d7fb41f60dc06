package config_test

import (
	"fmt"

	"github.com/penstock-io/penstock/config"
)

func ExampleLoad() {
	text := []byte(`penstock:
  memory_regions:
    - {name: packets, kind: huge, num_bufs: 8192, buf_size: 2KiB}
  interfaces:
    - name: port
      address: eth0
      rx:
        queues:
          - memory_regions: [packet]
            cpu_cor: 2
`)
	cfg, problems := config.Load("rx.yaml", text, config.Options{})
	fmt.Print(problems.Text(text))
	fmt.Println(cfg == nil, problems.Summary())
	// Output:
	// rx.yaml:9:30: error: there is no memory region "packet"
	//   9 |           - memory_regions: [packet]
	//     |                              ^~~~~~
	//     = expected packets
	//     = did you mean packets?
	//
	// rx.yaml:10:13: error: unknown key "cpu_cor" in a receive queue
	//  10 |             cpu_cor: 2
	//     |             ^~~~~~~
	//     = did you mean cpu_core?
	// true 2 errors
}

func ExampleConfig_Source() {
	cfg, _ := config.Load("rx.yaml", []byte(`penstock:
  memory_regions: [{name: packets, kind: host, num_bufs: 512, buf_size: 2KiB}]
  interfaces: [{name: port, address: eth0, rx: {queues: [{memory_regions: [packets]}]}}]
`), config.Options{})
	for _, path := range []string{"memory_regions[0].buf_size", "memory_regions[0].align", "interfaces[0].engine",
		"interfaces[0].rx.queues[0].depth"} {
		s := cfg.Source(path)
		fmt.Printf("%s: %v %d %q\n", path, s.Origin, s.At.Line, s.Why)
	}
	// Output:
	// memory_regions[0].buf_size: file 2 ""
	// memory_regions[0].align: default 0 ""
	// interfaces[0].engine: derived 0 "the address is a network interface"
	// interfaces[0].rx.queues[0].depth: derived 0 "num_bufs of packets"
}
