// Vectors summed over blocks that lanes finish in any order: always added in the same order, for the same
// bits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace robustdml::cpu {

// Memory without values, for one sweep.
template <class T>
class Buffer {
  public:
    explicit Buffer(std::int64_t size = 0) : data_(size ? new T[size] : nullptr) {}
    T* get() const { return data_.get(); }

  private:
    std::unique_ptr<T[]> data_;
};

// Blocks are the leaves of a binary tree, and who finishes the second half of a node adds both. So memory is
// taken by the blocks that lanes work on and one half a level, not by all blocks; and an addition is made by
// the lane that has one half in its cache.
template <class T>
class BlockSums {
  public:
    // `total` (size,) is where the sum goes, or null: none is wanted.
    BlockSums(std::int64_t blocks, std::int64_t size, T* total)
        : blocks_(blocks), size_(size), total_(total), halves_(total ? blocks : 0) {}

    // Memory for the sum of a block; null where none is wanted.
    T* start(std::int64_t block) {
        if (!total_ || block == 0) return total_;
        const std::lock_guard<std::mutex> hold(lock_);
        if (!unused_.empty()) {
            halves_[block].own = std::move(unused_.back());
            unused_.pop_back();
        } else {
            halves_[block].own = Buffer<T>(size_);
        }
        return halves_[block].own.get();
    }

    // The memory of `block` holds its sum.
    void finish(std::int64_t block) {
        if (!total_) return;
        for (std::int64_t width = 1; width < blocks_; width *= 2) {
            const bool is_left = block / width % 2 == 0;
            const std::int64_t left = is_left ? block : block - width, right = left + width;
            if (right >= blocks_) continue;
            if (!is_complete(is_left ? right : left, block, width)) return;
            add(sum(left), sum(right));
            const std::lock_guard<std::mutex> hold(lock_);
            unused_.push_back(std::move(halves_[right].own));
            block = left;
        }
    }

  private:
    struct Half {
        Buffer<T> own;           // of block 0: the total
        std::int64_t width = 0;  // blocks that are summed, once it waits for the other half
    };

    T* sum(std::int64_t first) { return first == 0 ? total_ : halves_[first].own.get(); }

    // Whether the half that begins at `other` is complete; else the one at `own` waits for it.
    bool is_complete(std::int64_t other, std::int64_t own, std::int64_t width) {
        const std::lock_guard<std::mutex> hold(lock_);
        if (halves_[other].width == width) return true;
        halves_[own].width = width;
        return false;
    }

    void add(T* to, const T* from) const {
#pragma omp simd
        for (std::int64_t i = 0; i < size_; ++i) to[i] += from[i];
    }

    std::int64_t blocks_, size_;
    T* total_;
    std::vector<Half> halves_;  // by their first block
    std::vector<Buffer<T>> unused_;
    std::mutex lock_;
};

}  // namespace robustdml::cpu
