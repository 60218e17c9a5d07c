#pragma once

namespace aft {

// How the vectors of a text's tokens become one vector. kNone keeps a vector for each token.
enum class Pooling { kNone, kMean, kFirst, kLast };

}  // namespace aft
