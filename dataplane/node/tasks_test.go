package node

import "testing"

// A stop that waits names the tasks that it waits for, and each kind has a name.
func TestTasksAreNamed(t *testing.T) {
	for k := range taskKinds {
		if k.String() == "" {
			t.Errorf("task %d has no name", k)
		}
	}
	var x tasks
	if got := x.String(); got != "none" {
		t.Errorf("no task: %q", got)
	}
	end := make(chan struct{})
	x.Go(taskMove, func() { <-end })
	x.begin(taskCommand)
	x.Go(taskMove, func() { <-end })
	if got, want := x.String(), "1 executing commands, 2 moving extents"; got != want {
		t.Errorf("tasks: %q, not %q", got, want)
	}
	x.end(taskCommand)
	close(end)
	x.Wait()
	if got := x.String(); got != "none" {
		t.Errorf("after the end: %q", got)
	}
}
