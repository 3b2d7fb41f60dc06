// Package sched decides whose bytes go next and how fast, and which transfers are admitted. It is
// pure: it holds no goroutine, no timer and no clock of its own, moves no bytes and blocks no
// caller; package transfer asks it and acts.
//
// Three parts, each usable alone:
//
//   - [Queue] orders work fairly by bytes: between classes by weight, and inside a class equally
//     between flows, so that a flow with little to send does not wait behind one with much, and no
//     flow starves.
//   - [Rate] says when the next bytes may leave: a token bucket, exact over any length of time.
//   - [Account] counts what is under way against [Limits], and refuses what is beyond them with a
//     [Refusal] that says which limit, its value, and what was asked. Each [Grant] is given back
//     exactly once.
//
// # Fairness
//
// Between classes, Queue is a start-time fair queue (P. Goyal, H. Vin, H. Cheng: Start-Time Fair
// Queueing, SIGCOMM 1996), which serves a class that had nothing to do for a while at once. Between
// the flows of a class it is a deficit round robin (M. Shreedhar, G. Varghese: Efficient Fair
// Queuing Using Deficit Round-Robin, IEEE/ACM Transactions on Networking 4(3), 1996) in its form
// with debt: a flow with credit is served, and pays afterwards. A decision takes amortised constant
// time, whatever the number of flows, and nothing allocates. With a quantum of Q bytes, and Q' = Q
// + OpCost:
//
//   - Two classes of weights v and w that both have work are charged, over any time, x and y bytes
//     with |x/v - y/w| <= Q'/v + Q'/w. So none starves: one that has work is served after at most
//     Q'/v + Q'/w for each other class.
//   - Two flows of a class are charged, from when both have work until one has none, amounts that
//     differ by at most 3Q'.
//   - A flow that begins (it had nothing to do before) goes first, by at most one quantum, as
//     sparse flows do in FQ-CoDel (RFC 8290, section 4.2). All such newcomers together get less
//     than 2Q' between two turns of other flows of their class; beyond that they wait for their
//     turn like the others. So a flow that has work has its turn after at most one turn of each
//     flow that had work when its last one ended, and that many times 2Q' of newcomers: however
//     many come, it does not starve.
//
// Every operation is charged OpCost beyond its bytes, so that a flood of empty ones is not free. A
// flow that is alone is charged nothing and gets all that it asks for.
package sched
