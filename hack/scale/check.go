package main

import "fmt"

// check holds the figures against their limits.
func (r *results) check() (code int, err error) {
	for _, x := range []struct {
		name       string
		got, limit float64
	}{
		{"idle.api_writes_per_s", r.Idle.WritesPS, 2},
		{"idle.cores", r.Idle.Cores, 0.3},
		{"detach_attach_2000_s", r.DetachAttachS, 60},
		{"delay_beside_dead_pair_s", r.DelayBesideS, 1},
		{"full_lists_in_reconcile", r.FullLists, 0},
		{"spread_percent", r.SpreadPercent, 10},
	} {
		if x.got > x.limit {
			fmt.Printf("%s is %.3g, and may be %.3g\n", x.name, x.got, x.limit)
			code = 1
		}
	}
	if r.Refused == 0 {
		fmt.Println("no LUN was refused for overcommit")
		code = 1
	}
	return code, nil
}
