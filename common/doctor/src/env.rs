//! What NCCL must be told to use the ports and the address that links here would:
//! lines for `eval`. Made of a choice, and of nothing else.

use verbatim_fabric::ports::{LinkLayer, Place};

/// The lines; empty where nothing was chosen. The index is that of the first place, and only
/// those of its index and kind of cable are named: NCCL knows one index for all.
pub fn nccl_exports(places: &[Place]) -> String {
    let Some(best) = places.first() else { return String::new() };
    let alike =
        |place: &&Place| place.link_layer == best.link_layer && place.gid.index == best.gid.index;
    let names: Vec<_> =
        places.iter().filter(alike).map(|it| format!("{}:{}", it.device, it.port)).collect();
    // `=`: these names, not all that begin like them.
    let mut text = format!("export NCCL_IB_HCA='={}'\n", names.join(","));
    if best.link_layer == LinkLayer::Ethernet {
        text.push_str(&format!("export NCCL_IB_GID_INDEX={}\n", best.gid.index));
    }
    text
}
