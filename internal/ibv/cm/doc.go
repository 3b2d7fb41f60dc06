// Package cm connects queue pairs through the RDMA connection manager (librdmacm). Queue pair
// numbers and GIDs need no other way.
//
// The library is found at run time. [Load] it, open a [Channel], which has a descriptor to wait for
// and gives one [Event] after the other, and make an [ID] in it for each connection. Nothing
// blocks: each step ends in an event.
//
//	active side                                        passive side
//	ResolveAddress  -> AddressResolved                 Bind, Listen
//	ResolveRoute    -> RouteResolved                   -> ConnectRequest with an ID of its own
//	make a queue pair on Device(), MoveQP to Init      make a queue pair, MoveQP to Init, ReadyToReceive, ReadyToSend
//	Connect         -> ConnectResponse                 Accept (or Reject)
//	MoveQP to ReadyToReceive, ReadyToSend, Establish   -> Established
//	Disconnect      -> Disconnected                    -> Disconnected; Disconnect
//
// That is RC, and UC by [Channel.NewIDAt]. With UD nothing is connected: the answer to Connect is
// Established, with the way to the peer's queue pair; the side that accepts gets no more events,
// and neither side learns of the end.
//
// The queue pair is one of package ibv and stays the caller's. The library opens devices by itself,
// which is why an ID tells the name of its device only.
package cm
