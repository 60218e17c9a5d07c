#pragma once

namespace aft::server {

// How urgent a request is. In this order of preference; waiting raises a request by and by, so none
// starves.
enum class ServiceClass { kInteractive, kNormal, kBatch };
inline constexpr int kServiceClasses = 3;

}  // namespace aft::server
