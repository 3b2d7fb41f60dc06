// Package rawqp is the packet engine "verbs": it moves whole Ethernet frames through raw-packet
// queue pairs of RDMA cards. It works on cards whose Ethernet ports offer such queue pairs (mlx4,
// mlx5). The card writes frames into slots of the pools and fetches them from there; the
// application posts and polls by libibverbs, which is found at run time. Soft-RoCE and InfiniBand
// have no such queue pairs: OpenPort says so.
//
//	eng := rawqp.New("")
//	port, err := eng.OpenPort(ctx, engine.PortSpec{Address: "mlx5_0"}) // or its interface, or its place on the PCI bus
//
// # Receiving
//
// Each receive queue has a queue pair, whose receives are slots of its own pools: one slot, several
// where frames are longer than one, or a header and a payload. All queues of a port share a
// completion queue, and a lock while they look at it: the owner of one that polls takes what came
// for all, in the order in which the device received it. For more processors than that serves, open
// another port of the same card with other rules.
//
// Payload may come into memory that the CPU does not reach, with RxSpec.SplitAt and two pools, and
// frames may be sent from there, where the card reaches it: [Port.ReachesRegion]. Where the
// accelerator takes a flush before it sees what came, each burst is flushed once before it is
// handed out; one that it refuses is dropped, and ends the queue.
//
// # Rules
//
// Every frame is classified by this process, as in other engines without a card, so that all
// fields, ranges, priorities and spreading mean the same. Rules of the card (ibv_create_flow) say
// which frames come at all, and into whose memory. A port takes everything that no other rule of
// the card sends elsewhere; rules that the card can match, also ranges of ports, are given to it so
// that frames land in the memory of their queue, and others are handed over between queues without
// a copy. A port that is isolated takes what its rules say and nothing else: there a rule that the
// card cannot match is an error.
//
// # Losses
//
// Frames for which no receive was posted are lost in the card, which counts them for all of its
// users (out_of_buffer): they are DropNIC of the port, or DropNoBuffers where a queue had fewer
// receives posted than its depth because its pools had no more slots. Where the card has no such
// count, Capabilities.ExactDrops is false.
package rawqp
