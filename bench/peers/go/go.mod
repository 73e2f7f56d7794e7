module bench-go

go 1.21
