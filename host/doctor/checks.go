package doctor

// checks are in the order in which a person looks: what the machine is, what is used of it, and
// then what it depends on.
var checks = []Check{
	{"interface", "Network interface", "Nothing arrives on an interface that is not here, is switched off or has no carrier.", checkInterface},
	{"mtu", "MTU", "Small frames cost as much work each as large ones: at 100 Gb/s an MTU of 1500 is eight million " +
		"frames a second, 9000 is one and a half.", checkMTU},
	{"queues", "Receive queues", "One core serves a queue; one queue is one core's worth of packets.", checkQueues},
	{"rings", "Receive rings", "The length of a ring is how long its reader may pause before the card loses packets.", checkRings},
	{"offloads", "Offloads", "LRO and hardware GRO join packets before XDP sees them; drivers refuse XDP with them, " +
		"or turn them off by themselves.", checkOffloads},
	{"xdp", "XDP of the driver", "Without native XDP the kernel copies each frame later and slower; with zero-copy it does not copy it at all.", checkXDP},
	{"irq", "Interrupts of the queues", "A queue whose interrupts wander over processors, or come to a far one, moves its data between caches.", checkIRQ},
	{"drops", "Loss", "What the card or the kernel has thrown away already shows which limit was reached.", checkDrops},
	{"pause", "Pause frames", "A card that is asked to pause stops sending, and one that asks makes the network " +
		"wait: both hide which side is too slow.", checkPause},
	{"hardware-time", "Hardware timestamps",
		"Timestamps by software include the delay of interrupts, from microseconds to milliseconds.",
		checkHardwareTime},
	{"cores", "Cores", "A core that is offline or not allowed (cpuset, taskset) cannot be bound to.", checkCores},
	{"smt", "Threads of one core", "Two busy threads of one core get about half of it each.", checkSMT},
	{"numa-cores", "Cores near the card", "Packets that a core of another NUMA node reads cross the connection between the sockets.", checkNUMACores},
	{"governor", "CPU frequency", "A processor that has slowed down takes time to come back, during which packets wait.", checkGovernor},
	{"idle", "Sleep of processors", "A deep state takes its wake-up time before the first packet is looked at.", checkIdle},
	{"isolation", "Isolated processors",
		"The scheduler, the timer tick or interrupts take a polling core away, and it loses packets in that time.",
		checkIsolation},
	{"numa-balancing", "NUMA balancing", "The kernel unmaps pages to see who uses them and moves them: page faults in the middle of a burst.", checkBalancing},
	{"clock-source", "Clock of the kernel", "Reading hpet or acpi_pm takes a microsecond and more, tsc some ten nanoseconds.", checkClockSource},
	{"clock-sync", "Time of day", "Times of two machines can be compared only as well as their clocks agree.", checkClockSync},
	{"hugepages", "Huge pages", "Frames in huge pages take fewer entries of the TLB and of the IOMMU, and DPDK does not start without.", checkHugePages},
	{"numa-memory", "Memory near the card",
		"A card writes into memory of another NUMA node across the connection between the sockets, and a node has " +
			"only so much.", checkNUMAMemory},
	{"thp", "Transparent huge pages", "With \"always\" the kernel joins and splits pages on its own account, and stops a process for it.", checkTHP},
	{"memlock", "Locked memory", "AF_XDP and RDMA pin memory and count it against this limit; registration fails beyond it.", checkMemlock},
	{"capabilities", "Rights", "Raw sockets, XDP programs and drivers in user space need rights that an ordinary user does not have.", checkCapabilities},
	{"kernel", "Kernel", "Engines need features of certain kernel versions.", checkKernel},
	{"lockdown", "Lockdown of the kernel", "With Secure Boot the kernel may be locked down: setpci cannot change a card then.", checkLockdown},
	{"socket-buffers", "Socket buffers",
		"A UDP socket loses what arrives while its reader is away and its buffer full; the kernel's default is 208 KiB.", checkBuffers},
	{"softnet", "Kernel's receive path", "The kernel's own limits per processor: a backlog that was full, or work that was cut off.", checkSoftnet},
	{"pcie-link", "PCI Express link",
		"A card in a slot with too few lanes, or whose link came up slower, cannot reach its rate whatever the " +
			"software does.", checkLink},
	{"pcie-payload", "PCI Express payload",
		"Each packet on the bus has some 24 bytes around it: 128 bytes of payload waste a sixth of the link, 512 a " +
			"twentieth.", checkPayload},
	{"pcie-read-request", "PCI Express read requests",
		"A card reads what it sends by requests of at most this many bytes: small ones keep too little under way.",
		checkReadRequest},
	{"pcie-acs", "Access control of bridges",
		"With ACS redirect a bridge sends requests between devices up to the root first: GPUDirect runs at a " +
			"fraction of its speed.", checkACS},
	{"iommu", "IOMMU", "It translates each address of a card. Drivers in user space need it; for all others its misses cost speed.", checkIOMMU},
	{"driver", "Driver in user space", "DPDK takes a card away from the kernel by vfio-pci, but for Mellanox cards, which it shares with it.", checkDriver},
	{"dpdk", "DPDK", "A program has DPDK if it was built with it, and loads its libraries where it runs.", checkDPDK},
	{"rdma", "RDMA", "Verbs need a device with an active port.", checkRDMA},
	{"rdma-gid", "Address of an RDMA port",
		"A connection over RoCE names an entry of the port's table: of RoCE version 2, with an address that the " +
			"other end has a route to.", checkGID},
	{"rdma-mtu", "MTU of an RDMA port",
		"A RoCE port takes the largest of 256, 512, 1024, 2048 and 4096 bytes that fits into its interface's frames: " +
			"each packet has some 60 around it.", checkPathMTU},
	{"rdma-counters", "Trouble of an RDMA port",
		"Reliable connections hide loss: what was repeated, and where no receiver was ready, is only in these counters.", checkRDMACounters},
	{"rdma-flow-control", "RoCE without loss",
		"One lost packet of RoCE makes the card send all behind it again: priority flow control avoids loss, ECN the " +
			"queues before it.", checkFlowControl},
	{"rdma-modules", "RDMA for programs", "ib_uverbs gives devices to programs, rdma_ucm connections by IP address.", checkRDMAModules},
	{"rdma-files", "Files of RDMA devices",
		"A program reaches a device by a file below /dev/infiniband, which it has to be allowed to open, also in a " +
			"container.", checkRDMAFiles},
	{"rdma-namespaces", "RDMA and network namespaces",
		"Exclusive devices are seen in one network namespace only; shared ones in all, by the addresses of " +
			"interfaces that are there.", checkRDMANamespaces},
	{"rdma-library", "Libraries of RDMA", "libibverbs drives a device by a part of its own for each kind of card, which is installed apart.", checkRDMALibrary},
	{"gpu", "GPU", "Without its driver no program can use a GPU.", checkGPU},
	{"gpu-direct", "GPU memory for network cards", "Without nvidia-peermem or dma-buf all bytes for the GPU go through the host's memory.", checkGPUDirect},
	{"rdma-gpu", "RDMA device and GPU",
		"An RDMA device reaches the memory of a GPU by dma-buf or by peer memory, if drivers of both, the kernel and " +
			"the way between them allow it.", checkRDMAGPU},
	{"gpu-bar", "GPU's window", "A network card reaches only what the GPU's largest BAR shows of its memory.", checkBAR},
	{"gpu-topology", "GPU near a network card",
		"Between devices below one PCI Express switch bytes do not touch the processor; elsewhere they share its lanes.", checkTopology},
	{"gpu-clocks", "GPU's clocks", "A GPU that has slowed down, to save power or because it is hot, takes longer for the same kernel.", checkClocks},
}
