#pragma once

namespace aft::server {

// How urgent a request is, in order of preference. Waiting raises a request's class over time, so
// that none starves.
enum class ServiceClass { kInteractive, kNormal, kBatch };
inline constexpr int kServiceClasses = 3;

}  // namespace aft::server
