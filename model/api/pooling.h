#pragma once

namespace aft {

// What becomes of the vectors of a text's tokens: nothing, or one vector of them.
enum class Pooling { kNone, kMean, kFirst, kLast };

}  // namespace aft
