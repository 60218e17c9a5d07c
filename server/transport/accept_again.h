#pragma once

namespace aft::server {

// gRPC never accepts again after an error of accept4(2) that it does not know, such as EMFILE: its
// port stays deaf although descriptors are free again. This file therefore defines accept4(2) for
// the process. It turns such an error into EAGAIN, after which gRPC waits for the listener's next
// event. Because gRPC's epoll is edge-triggered, that event is the next connection. Until then the
// waiting connections are not accepted, and when the queue is full no next one ever arrives.
// AcceptAgain therefore makes the event.

// Lets gRPC accept again at the listeners where it failed since the last call. Returns the error of
// one of them, or 0 if there was none. To be called regularly: if the reason lasts, gRPC fails
// again and the next call sees it. Thread-safe.
int AcceptAgain();

}  // namespace aft::server
