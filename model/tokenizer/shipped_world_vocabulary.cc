#include <cstddef>

#include "model/tokenizer/tokenizers.h"

// The assembler copies the file at the path AFT_WORLD_VOCABULARY into the program.
asm(R"(
  .pushsection .rodata
  .globl aft_world_vocabulary, aft_world_vocabulary_end
aft_world_vocabulary:
  .incbin ")" AFT_WORLD_VOCABULARY R"("
aft_world_vocabulary_end:
  .popsection
)");
extern "C" const char aft_world_vocabulary[], aft_world_vocabulary_end[];

absl::string_view aft::ShippedWorldVocabulary() {
  return {aft_world_vocabulary,
          static_cast<size_t>(aft_world_vocabulary_end - aft_world_vocabulary)};
}
