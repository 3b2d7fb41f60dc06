package main

func Example() {
	main()
	// Output: 3200 packets of 64 flows in 4 queues, each flow in one
}
